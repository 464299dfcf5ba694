#!/usr/bin/env python3
"""Looks at `tessera plan --output=html` in Chromium: light and dark, as wide as a desk's screen and
as a phone's, and with the keyboard. Writes screenshots, and fails where the page asks for anything,
logs anything, is wider than its window, or does not follow the keys.

    apt-get install chromium && pip install playwright
    tests/measure/plan_page.py FOLDER        after `bazel build //client:tessera`
"""

import json
import pathlib
import subprocess
import sys

from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTHS = {"desk": (1280, 900), "phone": (390, 844)}


def linear(name, outputs, inputs):
    return {"name": name, "class_name": "Linear", "parameters": [
        {"name": "weight", "shape": [outputs, inputs], "dtype": "bfloat16"}]}


def block(index, width):
    return {"name": str(index), "class_name": "Block", "children": [
        {"name": "attn", "class_name": "Attention", "children": [
            linear("qkv", 3 * width, width), linear("out", width, width)]},
        {"name": "mlp", "class_name": "Mlp", "children": [
            linear("up", 4 * width, width), linear("down", width, 4 * width)]}]}


def models():
    layers = {"name": "layers", "class_name": "ModuleList",
              "children": [block(i, 4096) for i in range(32)]}
    yield "stack", {"name": "a stack of 32 layers", "root": {"class_name": "Model", "children": [
        linear("embed", 32000, 4096), layers, linear("head", 32000, 4096)]}}
    hostile = "</script><script>window['hit'] = 1</script><b onclick=\"hit'&"
    yield "hostile", {"name": hostile, "root": {"class_name": hostile, "children": [
        {"name": hostile, "class_name": hostile, "children": [block(i, 64) for i in range(3)]}]}}
    many = [{"name": f"part_{i}", "class_name": f"Part{i}",
             "children": [linear(f"weight_{k}", 1 + i % 50, 16) for k in range(20)]}
            for i in range(1000)]
    yield "many", {"name": "21,001 modules", "root": {"class_name": "Model", "children": many}}


def write_page(folder, name, model):
    source = folder / f"{name}.json"
    source.write_text(json.dumps(model), encoding="utf-8")
    page = folder / f"{name}.html"
    wrap = ["--wrap=class", "--wrap_classes=Block"] if name != "many" else ["--wrap=none"]
    page.write_bytes(subprocess.run(
        [ROOT / "bazel-bin/client/tessera", "plan", f"--model={source}", "--world_size=8",
         "--unshard=slots", "--reduce_dtype=float32", "--output=html", *wrap],
        check=True, capture_output=True).stdout)
    return page


def focused(page):
    return page.evaluate("document.activeElement.textContent.trim()")


def use_the_keys(page):
    """From tile to tile, into a module and back, and through the tree."""
    page.locator("#map button[tabindex='0']").focus()
    first = focused(page)
    moved = False
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
        moved = moved or focused(page) != first
    assert moved, "the arrow keys did not leave the first tile"
    assert page.locator("#told").text_content(), "nothing is told of the tile"
    page.locator("#map button[tabindex='0']").focus()
    crumbs = page.locator("#path button").count()
    page.keyboard.press("Enter")
    if page.locator("#path button").count() > crumbs:
        page.keyboard.press("Escape")
        assert page.locator("#path button").count() >= crumbs, "Escape did not go back"
    page.locator(".tree .row[tabindex='0']").focus()
    if not page.locator(".tree details").first.evaluate("(d) => d.open"):
        page.keyboard.press("ArrowRight")
    first = focused(page)
    page.keyboard.press("ArrowDown")
    assert focused(page) != first, "ArrowDown stayed on the tree's first row"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    assert not page.locator(".tree details").first.evaluate("(d) => d.open"), "Left does not close"
    page.keyboard.press("ArrowRight")
    assert page.locator(".tree details").first.evaluate("(d) => d.open"), "Right does not open"
    before = page.locator("#reading").text_content()
    page.locator("#scrub").focus()
    page.keyboard.press("End")
    assert page.locator("#reading").text_content() != before, "the step's slider reads nothing"


def look(browser, path, scheme, width):
    size = WIDTHS[width]
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url)
            if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.locator("#map button").first.wait_for()
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= size[0], f"{path.name} is {wide} wide in a window of {size[0]}"
    assert page.evaluate("window.hit") is None, "a name ran as script"
    page.screenshot(path=path.with_name(f"{path.stem}-{width}-{scheme}.png"), full_page=True)
    use_the_keys(page)
    assert said == [], said
    page.close()


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium",
                                             args=["--no-sandbox"])
        for name, model in models():
            path = write_page(folder, name, model)
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    look(browser, path, scheme, width)
            print(f"{path}: {path.stat().st_size:,} bytes, as it should be", flush=True)
        browser.close()


main()

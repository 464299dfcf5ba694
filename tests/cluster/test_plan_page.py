"""`tessera plan --output=html`: one page that is whole, needs nothing else, shows names as text.
tests/measure/plan_page.py looks at it in a browser."""

import html.parser
import json
import re

HOSTILE = "</script><script>alert(1)</script><b a=\"'&"
VOID = {"meta", "input", "br", "hr", "img", "link"}


class Page(html.parser.HTMLParser):
    """Tags in balance, with every attribute and text on the way."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.tags, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def parameter(name, numel=16):
    return {"name": name, "shape": [numel], "dtype": "float32"}


def page_of(sandbox, model, *flags):
    path = sandbox.directory / "model.json"
    path.write_text(json.dumps(model), encoding="utf-8")
    program = sandbox.tessera("plan", f"--model={path}", "--output=html", *flags)
    assert (program.code, program.err) == (0, []), program.transcript()
    return "\n".join(program.out)


def test_page_of_a_job_is_whole_and_self_contained(sandbox):
    job = sandbox.write_job({"name": "gpt", "model": {"builtin": "gpt", "layers": 3}})
    program = sandbox.tessera("plan", f"--job={job}", "--output=html", "--unshard=slots")
    assert (program.code, program.err) == (0, []), program.transcript()
    text = "\n".join(program.out)
    assert text.startswith("<!doctype html>")
    page = Page(text)
    # Nothing comes from elsewhere, and nothing goes there.
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"// .*", "", text))
    assert {name for _, name, _ in page.attributes} & {"src", "href", "action", "srcset"} == set()
    assert ("meta", "name", "viewport") in page.attributes
    assert any("default-src 'none'" in (value or "") for _, _, value in page.attributes)
    assert "prefers-color-scheme: dark" in text
    # Tree, step, tables and notes stand in the page itself.
    assert {"details", "svg", "table", "script"} <= set(page.tags)
    for shown in ("gpt", "0-2", "h.0-2 x3", "Block", "Memory over a step, of one rank"):
        assert shown in page.texts, shown


def test_names_are_text(sandbox):
    name = HOSTILE.replace(".", "")
    child = {"name": name, "class_name": HOSTILE, "parameters": [parameter(name)]}
    root = {"class_name": HOSTILE, "children": [child]}
    text = page_of(sandbox, {"name": HOSTILE, "root": root}, "--wrap=none")
    page = Page(text)
    assert page.tags.count("script") == 1
    assert "b" not in {tag for tag, attribute, _ in page.attributes if attribute == "a"}
    assert "alert(1)" not in re.search(r"<script>(.*?)</script>", text, re.S).group(1)
    # Shown as it is: the title, the heading and the classes.
    assert page.texts.count(HOSTILE) >= 3


def test_page_of_many_modules_is_small(sandbox):
    children = [
        {"name": f"m{i}", "class_name": f"Class{i}", "parameters": [parameter("w", 1 + i % 97)]}
        for i in range(20_000)
    ]
    model = {"name": "many", "root": {"class_name": "Root", "children": children}}
    text = page_of(sandbox, model, "--wrap=none")
    assert len(text) < 500_000
    assert "more modules" in text
    Page(text)


def test_a_run_of_layers_is_one_node(sandbox):
    layers = [
        {"name": str(i), "class_name": "Block", "parameters": [parameter("w")]} for i in range(126)
    ]
    stack = {"name": "layers", "class_name": "ModuleList", "children": layers}
    model = {"name": "deep", "root": {"class_name": "Root", "children": [stack]}}
    page = Page(page_of(sandbox, model, "--wrap=class", "--wrap_classes=Block"))
    assert "0-125" in page.texts and "x126" in page.texts and "layers.0-125 x126" in page.texts

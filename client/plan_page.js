"use strict";
// The page says everything without this. Here: a treemap of the module tree, arrow keys in both, and a reading of the
// memory at a point of the step. Texts are taken from the page and set as text.
(() => {
  const byId = (id) => document.getElementById(id);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  // The module tree, as the page has it.
  const read = (item, parent) => {
    const row = item.querySelector(".row");
    const text = (selector) => (row.querySelector(selector) || {textContent: ""}).textContent;
    const module = {
      parent, row, name: text("b"), label: [text("b"), text(".times")].join(" ").trim(), kind: text(".class"),
      size: text(".size"), colour: item.dataset.colour, bytes: Number(item.dataset.bytes), unit: item.dataset.unit || "",
      isUnit: row.querySelector("em") !== null, kids: [],
    };
    for (const child of item.querySelectorAll(":scope > details > ul > li[data-bytes]")) {
      module.kids.push(read(child, module));
    }
    // What a module holds beside its children has a tile too.
    for (const [key, name] of [["own", "own parameters"], ["hidden", "more modules"]]) {
      const bytes = Number(item.dataset[key] || 0);
      if (bytes > 0 && (module.kids.length > 0 || key === "hidden")) {
        module.kids.push({...module, name, label: name, bytes, isUnit: false, kids: [], parent: module, part: true});
      }
    }
    return module;
  };

  // Squarified: rows along the shorter side, as long as the worst tile of a row gets no longer.
  const squarify = (modules, box) => {
    const tiles = [];
    const total = modules.reduce((sum, module) => sum + module.bytes, 0);
    let rest = modules.filter((module) => module.bytes > 0).sort((a, b) => b.bytes - a.bytes);
    let {x, y, w, h} = box;
    const scale = (w * h) / total;
    while (rest.length > 0 && w > 0 && h > 0) {
      const side = Math.min(w, h);
      let length = 0, sum = 0, worst = Infinity;
      while (length < rest.length) {
        const next = sum + rest[length].bytes * scale;
        const largest = rest[0].bytes * scale, smallest = rest[length].bytes * scale;
        const ratio = Math.max((side * side * largest) / (next * next), (next * next) / (side * side * smallest));
        if (length > 0 && ratio > worst) break;
        worst = ratio;
        sum = next;
        ++length;
      }
      const across = sum / side;
      let along = 0;
      for (const module of rest.slice(0, length)) {
        const extent = (module.bytes * scale) / across;
        tiles.push(w >= h ? {module, x, y: y + along, w: across, h: extent} : {module, x: x + along, y, w: extent, h: across});
        along += extent;
      }
      if (w >= h) { x += across; w -= across; } else { y += across; h -= across; }
      rest = rest.slice(length);
    }
    return tiles;
  };

  const map = byId("map"), path = byId("path"), told = byId("told");
  const root = read(document.querySelector(".tree > ul > li"), null);
  let shown = root, buttons = [];
  const HEADER = 17, SMALLEST = 5, DEEPEST = 4;

  const nameOf = (module) => {
    const names = [];
    for (let at = module; at && at.parent; at = at.parent) names.unshift(at.name);
    return names.join(".") || "(root)";
  };
  const tell = (module) => {
    const share = ((100 * module.bytes) / root.bytes).toFixed(1);
    const size = module.part ? "" : `, ${module.size}`;
    const unit = module.unit ? `, in unit ${module.unit}` : "";
    told.textContent = `${nameOf(module)}, ${module.kind || "no class"}${size}, ${share}% of the model${unit}`;
  };

  const place = (element, tile) => {
    for (const [key, value] of [["left", tile.x], ["top", tile.y], ["width", tile.w], ["height", tile.h]]) {
      element.style[key] = `${value}px`;
    }
  };
  const drawTile = (tile, depth) => {
    if (tile.w < SMALLEST || tile.h < SMALLEST) return;
    const {module} = tile;
    const frame = module.kids.length > 0 && depth < DEEPEST && tile.w > 44 && tile.h > 2 * HEADER;
    const button = document.createElement("button");
    button.type = "button";
    button.className = `${module.colour} ${module.isUnit ? "unit" : ""}`;
    button.tabIndex = -1;
    button.title = `${nameOf(module)} ${module.kind}`;
    const label = document.createElement("span");
    label.textContent = tile.w > 26 && tile.h > 13 ? `${module.label} ${module.part ? "" : module.size}` : "";
    button.append(label);
    button.setAttribute("aria-label", `${module.label} ${module.kind} ${module.part ? "" : module.size}`);
    place(button, tile);
    button.addEventListener("focus", () => tell(module));
    button.addEventListener("pointerenter", () => tell(module));
    button.addEventListener("click", () => { if (module.kids.length > 0 && module !== shown) draw(module, true); });
    map.append(button);
    buttons.push({button, tile});
    if (!frame) return;
    const inner = {x: tile.x + 3, y: tile.y + HEADER, w: tile.w - 6, h: tile.h - HEADER - 3};
    for (const child of squarify(module.kids, inner)) drawTile(child, depth + 1);
  };
  const draw = (module, focus) => {
    shown = module;
    buttons = [];
    map.replaceChildren();
    path.replaceChildren();
    const crumbs = [];
    for (let at = module; at; at = at.parent) crumbs.unshift(at);
    for (const crumb of crumbs) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = crumb.name || "(root)";
      button.addEventListener("click", () => draw(crumb, true));
      path.append(button);
    }
    const box = {x: 0, y: 0, w: map.clientWidth, h: map.clientHeight};
    const top = module.kids.length > 0 ? module.kids : [module];
    for (const tile of squarify(top, box)) drawTile(tile, 0);
    if (buttons.length === 0) return;
    buttons[0].button.tabIndex = 0;
    if (focus) buttons[0].button.focus(); else tell(module);
  };

  // The nearest tile whose edge lies in the direction of the key; Escape goes to the module around.
  const DIRECTIONS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  map.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown.parent) { draw(shown.parent, true); return; }
    const direction = DIRECTIONS[event.key];
    const from = buttons.find(({button}) => button === document.activeElement);
    if (!direction || !from) return;
    event.preventDefault();
    const [dx, dy] = direction;
    const corner = ({tile}) => [tile.x, tile.y];
    const [x, y] = corner(from);
    let best = null, least = Infinity;
    for (const to of buttons) {
      const ahead = (corner(to)[0] - x) * dx + (corner(to)[1] - y) * dy;
      const aside = Math.abs((corner(to)[0] - x) * dy) + Math.abs((corner(to)[1] - y) * dx);
      if (to === from || ahead <= 0.5 || ahead + 2 * aside >= least) continue;
      best = to;
      least = ahead + 2 * aside;
    }
    if (!best) return;
    from.button.tabIndex = -1;
    best.button.tabIndex = 0;
    best.button.focus();
  });

  // Arrow keys in the tree; of all rows one can be tabbed to.
  const tree = document.querySelector(".tree");
  const rows = () => [...tree.querySelectorAll(".row")].filter((row) => row.offsetParent !== null);
  for (const row of tree.querySelectorAll(".row")) row.tabIndex = -1;
  root.row.tabIndex = 0;
  tree.addEventListener("focusin", (event) => {
    for (const row of tree.querySelectorAll('.row[tabindex="0"]')) row.tabIndex = -1;
    event.target.closest(".row").tabIndex = 0;
  });
  tree.addEventListener("keydown", (event) => {
    const row = event.target.closest(".row");
    const details = row && row.matches("summary") ? row.parentElement : null;
    const all = rows(), at = all.indexOf(row);
    let next = null;
    if (event.key === "ArrowDown") next = all[at + 1];
    else if (event.key === "ArrowUp") next = all[at - 1];
    else if (event.key === "Home") next = all[0];
    else if (event.key === "End") next = all[all.length - 1];
    else if (event.key === "ArrowRight" && details && !details.open) details.open = true;
    else if (event.key === "ArrowRight" && details) next = all[at + 1];
    else if (event.key === "ArrowLeft" && details && details.open) details.open = false;
    else if (event.key === "ArrowLeft") next = row.closest("ul").closest("li")?.querySelector(".row");
    else return;
    event.preventDefault();
    if (next) next.focus();
  });

  const scrub = byId("scrub"), reading = byId("reading"), cursor = byId("cursor");
  const points = [...document.querySelectorAll("#points tbody tr")].map((row) => {
    const [phase, unit, ...figures] = [...row.cells].map((cell) => cell.textContent);
    const labels = [...row.cells].slice(2).map((cell) => cell.dataset.label.toLowerCase());
    return `${`${phase} ${unit}`.trim()}: ${figures.map((figure, i) => `${labels[i]} ${figure}`).join(", ")}`;
  });
  const readPoint = () => {
    const at = clamp(Number(scrub.value), 0, points.length - 1);
    reading.textContent = points[at];
    cursor.setAttribute("x1", ((at + 0.5) * 1000) / points.length);
    cursor.setAttribute("x2", ((at + 0.5) * 1000) / points.length);
  };
  if (scrub) {
    scrub.hidden = false;
    scrub.max = points.length - 1;
    scrub.addEventListener("input", readPoint);
    readPoint();
  }

  map.classList.add("drawn");
  let width = 0;
  new ResizeObserver(() => {
    if (map.clientWidth === width) return;
    width = map.clientWidth;
    draw(shown, false);
  }).observe(map.parentElement);
})();

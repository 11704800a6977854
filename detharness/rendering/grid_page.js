"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const grid = document.getElementById("grid");
const panel = document.getElementById("panel");
const shown = document.getElementById("shown");
const hiddenKinds = new Set();
let wantedTag = -1;
let wantedText = "";
let open = null;

function make(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

// Every text of the data enters the page as a text node: nothing in it can become markup.
function pane({ title, before, marked, after }) {
  const section = make("section");
  const body = make("pre");
  body.append(before);
  if (marked !== "") body.append(make("mark", marked));
  body.append(after);
  section.append(make("h3", title), body);
  return section;
}

function showCell(button, row, cell) {
  if (open) open.classList.remove("open");
  open = button;
  button.classList.add("open");
  const kind = data.kinds[cell.kind];
  const header = make("header");
  const close = make("button", "Close");
  close.addEventListener("click", () => { panel.replaceChildren(); button.classList.remove("open"); button.focus(); });
  header.append(make("strong", `${row.id}, sample ${cell.sample}: ${kind.label}`), close);
  const table = make("table");
  for (const [label, value] of [...row.facts, ...cell.facts]) {
    const line = make("tr");
    line.append(make("th", label), make("td", value));
    table.append(line);
  }
  const panes = make("div", undefined, "panes");
  panes.append(...cell.panes.map(pane));
  panel.replaceChildren(header, table, panes);
}

const drawn = [];
for (const row of data.rows) {
  const line = make("div", undefined, "row");
  const name = make("div", row.id, "name");
  name.title = row.id;
  const cells = make("div", undefined, "cells");
  const buttons = row.cells.map((cell) => {
    const kind = data.kinds[cell.kind];
    const button = make("button", kind.glyph, `cell ${kind.colour}`);
    button.title = `${row.id}, sample ${cell.sample}: ${kind.label}`;
    button.setAttribute("aria-label", button.title);
    button.addEventListener("click", () => showCell(button, row, cell));
    return button;
  });
  cells.append(...buttons);
  line.append(name, cells);
  grid.append(line);
  drawn.push({ line, row, buttons });
}

function filter() {
  let count = 0;
  for (const { line, row, buttons } of drawn) {
    let any = false;
    const named = row.id.toLowerCase().includes(wantedText);
    row.cells.forEach((cell, index) => {
      const tagged = wantedTag < 0 || cell.tags.includes(wantedTag);
      const seen = named && tagged && !hiddenKinds.has(cell.kind);
      buttons[index].classList.toggle("hidden", !seen);
      any = any || seen;
      count += seen;
    });
    line.classList.toggle("hidden", !any);
  }
  shown.textContent = `${count} cells shown`;
}

const filters = document.getElementById("filters");
data.kinds.forEach((kind, index) => {
  const label = make("label");
  const box = make("input");
  box.type = "checkbox";
  box.checked = true;
  box.addEventListener("change", () => { hiddenKinds[box.checked ? "delete" : "add"](index); filter(); });
  label.append(box, " ", make("span", kind.glyph, kind.colour), ` ${kind.label} (${kind.count})`);
  filters.append(label);
});
if (data.tags.length) {
  const label = make("label", "with ");
  const select = make("select");
  [["any mark", -1], ...data.tags.map((tag, index) => [tag, index])].forEach(([text, value]) => {
    const option = make("option", text);
    option.value = value;
    select.append(option);
  });
  select.addEventListener("change", () => { wantedTag = Number(select.value); filter(); });
  label.append(select);
  filters.append(label);
}
const label = make("label", "task ");
const search = make("input");
search.type = "search";
search.addEventListener("input", () => { wantedText = search.value.toLowerCase(); filter(); });
label.append(search);
filters.append(label, shown);
filter();

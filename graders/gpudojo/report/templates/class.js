"use strict";
(() => {
  const of = (id) => document.getElementById(id);
  // The value a column is sorted by: seconds and bytes, whatever unit is shown.
  const value = (cell) => cell.dataset.v ?? cell.textContent.trim();
  const sorted = new Map();
  for (const each of document.querySelectorAll("table.sortable")) {
    const heads = Array.from(each.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const sort = (down) => {
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const numbers = head.classList.contains("num");
        const order = (a, b) => numbers
          ? (value(a.cells[column]) === "" ? -1 : Number(value(a.cells[column]))) - (value(b.cells[column]) === "" ? -1 : Number(value(b.cells[column])))
          : value(a.cells[column]).localeCompare(value(b.cells[column]), undefined, { numeric: true });
        const rows = Array.from(each.tBodies[0].rows);
        each.tBodies[0].append(...rows.sort((a, b) => (down ? -order(a, b) : order(a, b))));
      };
      button.addEventListener("click", () => sort(head.getAttribute("aria-sort") === "ascending"));
      sorted.set(head, sort);
    });
  }
  const table = of("class");
  if (!table) return;
  const heads = Array.from(table.tHead.rows[0].cells);
  const rows = Array.from(table.tBodies[0].rows);  // in the order of the class, as places in it are counted
  const filters = of("filters");

  const names = new Map(rows.map((row) => [row, row.cells[0].textContent.toLowerCase()]));
  let chosen = null;  // what a number or bar above stands for: a set of rows and a label
  const filter = () => {
    const name = of("f-name").value.trim().toLowerCase();
    const status = of("f-status").value;
    const from = of("f-from").value === "" ? -Infinity : Number(of("f-from").value);
    const to = of("f-to").value === "" ? Infinity : Number(of("f-to").value);
    const review = of("f-review").checked;
    const section = of("f-section") ? of("f-section").value : "";
    let count = 0;
    for (const row of rows) {
      const points = Number(value(row.cells[2]));
      const fits = names.get(row).includes(name) && (!status || value(row.cells[1]) === status)
        && points >= from && points <= to && (!review || value(row.cells[row.cells.length - 1]) !== "")
        && (!section || row.querySelector(".section").textContent.trim() === section)
        && (!chosen || chosen.rows.has(row));
      row.hidden = !fits;
      count += fits;
    }
    of("shown").textContent = `${count} of ${rows.length} ${table.dataset.noun} shown${chosen ? `: ${chosen.label}` : ""}`;
    of("everybody").hidden = !chosen;
  };
  filters.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  of("everybody").addEventListener("click", () => { chosen = null; filter(); });

  const choose = (of_rows, label) => {
    chosen = { rows: new Set(of_rows), label };
    filters.reset();
    filter();
    of("students").scrollIntoView();
    of("everybody").focus({ preventScroll: true });
  };
  // Numbers, bars and exercises above the table lead to the rows they are made of.
  for (const number of document.querySelectorAll(".who")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "who";
    button.append(...number.childNodes);
    button.setAttribute("aria-label", `${number.textContent} ${number.dataset.label}: show who`);
    const its = number.dataset.rows.split(",").map((place) => rows[Number(place)]);
    button.addEventListener("click", () => choose(its, number.dataset.label));
    number.replaceWith(button);
  }
  for (const bar of document.querySelectorAll("rect[data-from]")) {
    const [from, to] = [Number(bar.dataset.from), Number(bar.dataset.to)];
    const last = to >= Number(table.dataset.most);
    const its = rows.filter((row) => {
      const points = Number(value(row.cells[2]));
      return points >= from && (points < to || last);
    });
    const label = `${from} to ${to} points`;
    bar.closest("svg").setAttribute("role", "group");
    bar.setAttribute("role", "button");
    bar.setAttribute("tabindex", "0");
    bar.setAttribute("aria-label", `${its.length} with ${label}: show who`);
    bar.addEventListener("click", () => choose(its, label));
    bar.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(its, label); }
    });
  }
  for (const link of document.querySelectorAll("a[data-sort]")) {
    link.addEventListener("click", () => {
      const head = heads.find((each) => each.dataset.csv === link.dataset.sort);
      if (head) sorted.get(head)(false);
    });
  }

  // A cell that a spreadsheet would run as a formula begins with an apostrophe.
  const safe = (cell) => (/^[=+\-@\t\r＝＋－＠]/.test(cell) && Number.isNaN(Number(cell)) ? "'" + cell : cell);
  const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  of("csv").addEventListener("click", () => {
    const first = heads.map((head) => head.dataset.csv ?? head.textContent.trim());
    const shown = Array.from(table.tBodies[0].rows).filter((row) => !row.hidden);
    const lines = [first, ...shown.map((row) => Array.from(row.cells, value))];
    const csv = lines.map((cells) => cells.map((cell) => quoted(safe(cell))).join(",")).join("\r\n") + "\r\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["\ufeff", csv], { type: "text/csv" }));
    link.download = table.dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  filters.hidden = false;
  filter();

  // A link to an example opens it.
  const unfold = () => {
    const target = location.hash.startsWith("#example-") && of(location.hash.slice(1));
    if (!target) return;
    target.open = target.parentElement.open = true;
    target.scrollIntoView();
    target.querySelector("summary").focus();
  };
  addEventListener("hashchange", unfold);
  unfold();
})();

"use strict";
(() => {
  const table = document.getElementById("class");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  // The value a column is sorted by: seconds and bytes, whatever unit is shown.
  const value = (cell) => cell.dataset.v ?? cell.textContent.trim();
  const text = rows.map((row) => row.cells[0].textContent.toLowerCase());
  const of = (id) => document.getElementById(id);
  const filters = of("filters");

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const numbers = head.classList.contains("num");
      const order = (a, b) => numbers
        ? (value(a.cells[column]) === "" ? -1 : Number(value(a.cells[column]))) - (value(b.cells[column]) === "" ? -1 : Number(value(b.cells[column])))
        : value(a.cells[column]).localeCompare(value(b.cells[column]), undefined, { numeric: true });
      rows.sort((a, b) => (down ? -order(a, b) : order(a, b)));
      body.append(...rows);
    });
  });

  const names = new Map(rows.map((row, place) => [row, text[place]]));
  const filter = () => {
    const name = of("f-name").value.trim().toLowerCase();
    const status = of("f-status").value;
    const from = of("f-from").value === "" ? -Infinity : Number(of("f-from").value);
    const to = of("f-to").value === "" ? Infinity : Number(of("f-to").value);
    const review = of("f-review").checked;
    let count = 0;
    for (const row of rows) {
      const points = Number(value(row.cells[2]));
      const fits = names.get(row).includes(name) && (!status || value(row.cells[1]) === status)
        && points >= from && points <= to && (!review || value(row.cells[row.cells.length - 1]) !== "");
      row.hidden = !fits;
      count += fits;
    }
    of("shown").textContent = `${count} of ${rows.length} submissions shown`;
  };
  filters.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());

  // A cell that a spreadsheet would run as a formula begins with an apostrophe.
  const safe = (cell) => (/^[=+\-@\t\r]/.test(cell) && Number.isNaN(Number(cell)) ? "'" + cell : cell);
  const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  of("csv").addEventListener("click", () => {
    const first = heads.map((head) => head.dataset.csv ?? head.textContent.trim());
    const lines = [first, ...rows.filter((row) => !row.hidden).map((row) => Array.from(row.cells, value))];
    const csv = lines.map((cells) => cells.map((cell) => quoted(safe(cell))).join(",")).join("\r\n") + "\r\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
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

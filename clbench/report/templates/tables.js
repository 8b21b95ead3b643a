"use strict";
(() => { // filters for the rows of tables, and a button in each of their heads
  const filters = document.getElementById("filters");
  const tables = [...document.querySelectorAll("table.sortable")];
  const bodies = tables.map(table => [...table.tBodies[0].rows]);
  const rows = bodies.filter((_, number) => tables[number].classList.contains("filtered")).flat();
  if (filters) {
    const selects = [...filters.querySelectorAll("select")], find = filters.querySelector("[data-find]");
    for (const select of selects) {
      const values = new Set(rows.map(row => row.dataset[select.dataset.column]));
      for (const value of values) select.add(new Option(value, value));
    }
    const apply = () => {
      const text = find.value.trim().toLowerCase();
      let visible = 0;
      for (const row of rows) {
        const fits = selects.every(s => !s.value || row.dataset[s.dataset.column] === s.value)
          && (!text || row.textContent.toLowerCase().includes(text));
        row.hidden = !fits;
        visible += fits;
      }
      document.getElementById("count").textContent = `${visible} of ${rows.length} rows`;
    };
    for (const control of [...selects, find]) control.addEventListener("input", apply);
    filters.hidden = false;
    apply();
  }
  const value = (row, index) => {
    const cell = row.cells[index];
    if (!("value" in cell.dataset)) return cell.textContent;
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  tables.forEach((table, number) => [...table.tHead.rows[0].cells].forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      bodies[number].sort((a, b) => {
        const x = value(a, index), y = value(b, index);
        if (x === null || y === null) return (x === null) - (y === null);
        const order = typeof x === "number" ? x - y : x.localeCompare(y);
        return up ? order : -order;
      });
      table.tBodies[0].append(...bodies[number]);
    });
  }));
})();

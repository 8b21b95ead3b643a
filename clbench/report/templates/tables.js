"use strict";
(() => { // filters for the rows of tables, a button in each of their heads, a menu above cards
  const filters = document.getElementById("filters");
  const tables = [...document.querySelectorAll("table.sortable")];
  const bodies = tables.map(table => [...table.tBodies[0].rows]);
  const rows = bodies.filter((_, number) => tables[number].classList.contains("filtered")).flat();
  const shown = row => [...row.cloneNode(true).cells].map(cell => {
    for (const part of cell.querySelectorAll("details:not([open]) > :not(summary)")) part.remove();
    return cell.textContent.toLowerCase();
  });
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
          && (!text || shown(row).some(cell => cell.includes(text)));
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
  tables.forEach((table, number) => {
    const heads = [...table.tHead.rows[0].cells];
    const select = document.createElement("select");
    const sort = (index, up) => {
      for (const head of heads) head.removeAttribute("aria-sort");
      heads[index].setAttribute("aria-sort", up ? "ascending" : "descending");
      select.value = `${index} ${up ? "↑" : "↓"}`;
      bodies[number].sort((a, b) => {
        const x = value(a, index), y = value(b, index);
        if (x === null || y === null) return (x === null) - (y === null);
        const order = typeof x === "number" ? x - y : x.localeCompare(y);
        return up ? order : -order;
      });
      table.tBodies[0].append(...bodies[number]);
    };
    select.add(new Option("as listed", ""));
    select.options[0].disabled = true; // there is no way back to the order of the page
    heads.forEach((head, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      for (const sign of "↑↓") select.add(new Option(`${head.textContent} ${sign}`, `${index} ${sign}`));
      head.replaceChildren(button);
      button.addEventListener("click", () => sort(index, head.getAttribute("aria-sort") !== "ascending"));
    });
    if (!table.classList.contains("cards")) return;
    const label = document.createElement("label");
    label.className = "sort";
    label.append("sort by ", select);
    select.addEventListener("input", () => {
      const [index, sign] = select.value.split(" ");
      sort(Number(index), sign === "↑");
    });
    table.before(label);
  });
})();

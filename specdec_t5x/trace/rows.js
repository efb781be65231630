for (const head of document.querySelectorAll(".rows th")) {
  head.firstChild.onclick = () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = document.querySelector(".rows tbody"), at = head.cellIndex;
    const of = row => row.cells[at].textContent;
    const numbers = body.rows[0].cells[at].className === "number";
    const order = (a, b) => numbers ? of(a) - of(b) : of(a).localeCompare(of(b));
    const rows = [...body.rows].sort((a, b) => down ? order(b, a) : order(a, b));
    body.append(...rows);
  };
}

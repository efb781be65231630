const order = () => [...document.querySelectorAll(".rows tbody tr")].map(
  row => row.cells[0].textContent).join();
const result = [order()];
for (const name of ["number", "number", "output", "alpha"]) {
  [...document.querySelectorAll(".rows th button")].find(
    button => button.textContent === name).click();
  result.push(order() + document.querySelector(".rows th[aria-sort]").ariaSort[0]);
}
return result;

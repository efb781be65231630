const tokens = [...document.querySelectorAll("button.token")];
const line = token => token.closest("li");
const sideways = {ArrowRight: 1, ArrowLeft: -1}, lines = {ArrowDown: 1, ArrowUp: -1};
addEventListener("keydown", event => {
  const at = tokens.indexOf(document.activeElement);
  if (at < 0) return;
  let to = null;
  if (event.key in sideways) to = tokens[at + sideways[event.key]];
  if (event.key in lines) {
    const all = [...new Set(tokens.map(line))];
    const next = all[all.indexOf(line(tokens[at])) + lines[event.key]];
    to = next && next.querySelector("button.token");
  }
  if (to) { event.preventDefault(); to.focus(); }
});

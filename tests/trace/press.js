const press = key => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true}));
const tokens = document.querySelectorAll("button.token"), result = {};
tokens[0].focus();
press("ArrowRight"); result.right = document.activeElement === tokens[1];
result.shown = getComputedStyle(tokens[1].querySelector(".facts")).display;
result.hidden = getComputedStyle(tokens[0].querySelector(".facts")).display;
press("ArrowDown"); result.down = document.activeElement === tokens[4];
press("ArrowUp"); press("ArrowLeft"); press("ArrowLeft");
result.start = document.activeElement === tokens[0];
const ink = () => getComputedStyle(document.body).backgroundColor;
result.light = ink(); document.getElementById("theme").click(); result.dark = ink();
return result;

const press = key => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true}));
const tokens = document.querySelectorAll("button.token"), told = {};
tokens[0].focus();
press("ArrowRight"); told.right = document.activeElement === tokens[1];
told.shown = getComputedStyle(tokens[1].querySelector(".facts")).display;
told.hidden = getComputedStyle(tokens[0].querySelector(".facts")).display;
press("ArrowDown"); told.down = document.activeElement === tokens[4];
press("ArrowUp"); press("ArrowLeft"); press("ArrowLeft");
told.start = document.activeElement === tokens[0];
const ink = () => getComputedStyle(document.body).backgroundColor;
told.light = ink(); document.getElementById("theme").click(); told.dark = ink();
return told;

// Light and dark: as the reader's system has it, until the button says otherwise. What is drawn is told to change colours.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const changed = () => dispatchEvent(new Event("recolour"));
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    changed();
  });
  dark.addEventListener("change", changed);
})();

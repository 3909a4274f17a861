// What the board is made of: elements, whose text is only ever text, and words for numbers and times.
"use strict";
const parts = (() => {
  function make(tag, options = {}, ...inside) {
    const { className, ...others } = options;
    const made = document.createElement(tag);
    if (className) made.className = className;
    for (const [name, value] of Object.entries(others)) made.setAttribute(name, value);
    made.append(...inside.filter((part) => part !== null && part !== ""));
    return made;
  }

  function svg(tag, options = {}, ...inside) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(options)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  }

  const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  const known = (value) => value !== null && value !== undefined;
  const number = (value) => {
    if (!known(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e7 || (size && size < 1e-3)) return value.toExponential(3);
    return size < 10 ? value.toFixed(4) : value.toLocaleString("en", { maximumSignificantDigits: 6 });
  };
  const whole = (value) => (known(value) ? value.toLocaleString("en") : "–");
  const percent = (value) => `${(100 * value).toFixed(1)} %`;

  const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  function day(seconds) {
    const date = new Date(1000 * seconds), now = new Date();
    if (date.toDateString() === now.toDateString()) return "today";
    const year = date.getFullYear() === now.getFullYear() ? {} : { year: "numeric" };
    return date.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...year });
  }

  return { make, svg, many, known, number, whole, percent, clock, day };
})();

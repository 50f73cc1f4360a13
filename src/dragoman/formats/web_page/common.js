"use strict";

const element = (id) => document.getElementById(id);

/** Seconds in words for people. */
function duration(seconds) {
  const [amount, unit] = seconds < 0.9995 ? [seconds * 1000, "ms"] : [seconds, "s"];
  return `${Number(amount.toPrecision(3))} ${unit}`;
}

function showError(problem) {
  element("error").textContent = problem;
  element("error").hidden = !problem;
}

/** Translate when the form is sent, also with Ctrl+Enter; copy the result. */
function listen(translate) {
  element("form").addEventListener("submit", translate);
  element("source").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translate(event);
  });
  element("copy").addEventListener("click", async () => {
    let said = "copied";
    try {
      await navigator.clipboard.writeText(element("result").textContent);
    } catch {
      // Refused, or not there at all: a page over plain http from another machine has none.
      getSelection().selectAllChildren(element("result"));
      said = "no clipboard here: selected, press Ctrl+C";
    }
    element("time").textContent = said;
  });
}

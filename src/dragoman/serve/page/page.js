"use strict";

const element = (id) => document.getElementById(id);
let models = [];
let latest = 0;

/** The answer's JSON; an Error in words for people where there is none. */
async function ask(path, body) {
  const options = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  let response;
  try {
    response = await fetch(path, options || {});
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(answer?.error || `The server answered ${response.status}.`);
  if (answer === null) throw new Error("The server's answer broke off. Try again.");
  return answer;
}

/** Seconds in words for people. */
function duration(seconds) {
  const [amount, unit] = seconds < 0.9995 ? [seconds * 1000, "ms"] : [seconds, "s"];
  return `${Number(amount.toPrecision(3))} ${unit}`;
}

function showError(problem) {
  element("error").textContent = problem;
  element("error").hidden = !problem;
}

/** Each text once: other pieces may spell the same. */
function showAlternatives(best, alternatives) {
  const others = new Set(alternatives.map((one) => one.text));
  others.delete(best);
  element("alternatives").replaceChildren(
    ...[...others].map((text) => {
      const item = document.createElement("li");
      item.dir = "auto";
      item.textContent = text;
      return item;
    }),
  );
  element("others").hidden = others.size === 0;
}

/** An older translation beside new text would mislead. */
function clear() {
  element("result").textContent = "";
  element("result").classList.remove("waiting");
  element("time").textContent = "";
  element("copy").disabled = true;
  showAlternatives("", []);
}

async function translate(event) {
  event?.preventDefault();
  const text = element("source").value;
  const number = ++latest;
  showError("");
  if (!text.trim()) {
    clear();
    return;
  }
  const model = models[element("model").selectedIndex];
  element("result").classList.add("waiting");
  element("time").textContent = "…";
  try {
    const wanted = { text, alternatives: 3, source: model?.source, target: model?.target };
    const answer = await ask("/translate", wanted);
    if (number !== latest) return;
    const best = answer.translations[0];
    element("result").textContent = best.text;
    element("result").lang = element("alternatives").lang = answer.target; // how it is read aloud
    element("time").textContent = duration(answer.seconds);
    element("copy").disabled = false;
    showAlternatives(best.text, best.alternatives);
  } catch (error) {
    if (number !== latest) return;
    clear();
    showError(error.message);
  } finally {
    if (number === latest) element("result").classList.remove("waiting");
  }
}

function showModel() {
  const model = models[element("model").selectedIndex];
  element("source").lang = model ? model.source : "";
  element("card").textContent = model ? model.card.replace(/^---[\s\S]*?---\s*/, "") : "";
}

async function start() {
  try {
    models = await ask("/models");
  } catch (error) {
    showError(error.message);
    return;
  }
  element("model").replaceChildren(
    ...models.map((model) => {
      const option = document.createElement("option");
      option.textContent = `${model.source} to ${model.target}`;
      return option;
    }),
  );
  showModel();
}

element("form").addEventListener("submit", translate);
element("model").addEventListener("change", () => {
  showModel();
  translate();
});
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
start();

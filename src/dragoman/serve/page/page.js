"use strict";

let models = [];
let pairs = []; // of languages; the source is "auto" if it is detected
let latest = 0;

/** The answer's JSON; an Error in words for people if there is none. */
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
  const pair = pairs[element("model").selectedIndex];
  element("result").classList.add("waiting");
  element("time").textContent = "…";
  try {
    const wanted = { text, alternatives: 3, source: pair?.source, target: pair?.target };
    const answer = await ask("/translate", wanted);
    if (number !== latest) return;
    const best = answer.translations[0];
    element("result").textContent = best.text;
    element("result").lang = element("alternatives").lang = answer.target; // how it is read aloud
    const from = answer.detected ? `from ${answer.source}, ` : "";
    element("time").textContent = from + duration(answer.seconds);
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
  const pair = pairs[element("model").selectedIndex];
  element("source").lang = pair && pair.source !== "auto" ? pair.source : "";
  element("card").textContent = models
    .filter((model) => pair && translates(model, pair))
    .map((model) => model.card.replace(/^---[\s\S]*?---\s*/, ""))
    .join("\n\n");
}

/** A pair whose source is detected for each target that several languages lead to. */
function detected(pairs) {
  const targets = pairs.map((pair) => pair.target);
  const several = targets.filter((target, at) => targets.indexOf(target) < at);
  return [...new Set(several)].map((target) => ({ source: "auto", target, via: null }));
}

/** Whether the model is the one of the pair, or one of the two. */
function translates(model, { source, target, via }) {
  const steps = via ? [[source, via], [via, target]] : [[source, target]];
  return steps.some(([from, to]) => [model.source, "auto"].includes(from) && model.target === to);
}

async function start() {
  try {
    models = await ask("/models");
    const languages = await ask("/languages");
    pairs = languages.pairs.concat(languages.detects ? detected(languages.pairs) : []);
  } catch (error) {
    showError(error.message);
    return;
  }
  element("model").replaceChildren(
    ...pairs.map((pair) => {
      const option = document.createElement("option");
      const source = pair.source === "auto" ? "detected language" : pair.source;
      option.textContent = `${source} to ${pair.target}${pair.via ? `, via ${pair.via}` : ""}`;
      return option;
    }),
  );
  showModel();
}

listen(translate);
element("model").addEventListener("change", () => {
  showModel();
  translate();
});
start();

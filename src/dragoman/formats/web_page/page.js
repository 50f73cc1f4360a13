"use strict";

let worker = null;
let ready = false;
let latest = 0;
let directions = [];

/** Bytes in words for people. */
function size(bytes) {
  return `${(bytes / 1e6).toPrecision(3)} MB`;
}

function count(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

/** The name of a language in English, such as German for de. */
function language(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

function inWords({ source, target }) {
  return `${language(source)} to ${language(target)}`;
}

function offer(given) {
  directions = given;
  for (const one of directions) {
    const option = document.createElement("option");
    option.textContent = inWords(one) + (one.zero_shot ? " (no training text)" : "");
    element("direction").append(option);
  }
  element("choice").hidden = directions.length === 1;
  showDirection();
}

/** The languages that are chosen, for eyes and for programs that read aloud. */
function showDirection() {
  const chosen = directions[element("direction").selectedIndex];
  document.title = inWords(chosen);
  element("languages").textContent = document.title;
  element("source").lang = chosen.source;
  element("result").lang = chosen.target;
}

/** A term and what is said of it, as text. */
function showFact(term, words) {
  const name = document.createElement("dt");
  const value = document.createElement("dd");
  name.textContent = term;
  value.textContent = words;
  element("facts").append(name, value);
}

async function showModel() {
  const [about, card] = await Promise.all(
    ["bundle.json", "README.md"].map(async (name) => {
      const response = await fetch(name);
      if (!response.ok) throw new Error(`The server answered ${response.status} for ${name}.`);
      return response.text();
    }),
  );
  const info = JSON.parse(about);
  const only = { source: info.source_language, target: info.target_language };
  const all = info.directions.length ? info.directions : [only];
  showFact("Model", info.name);
  showFact("Languages", all.map(({ source, target }) => `${source} to ${target}`).join(", "));
  showFact("Licence", info.licence);
  showFact("Weights", `${info.num_parameters.toLocaleString("en")} in ${info.quantization}`);
  for (const score of info.scores) {
    const metric = score.signature.includes("|nc:") ? "chrF" : "BLEU"; // characters in an n-gram
    showFact(`${metric} of ${score.text}`, score.value.toFixed(2));
  }
  if (!info.scores.length) showFact("Scores", "None was measured.");
  element("card").textContent = card.replace(/^---[\s\S]*?---\s*/, "");
}

/** An older translation beside new text would mislead. */
function clear() {
  element("result").textContent = "";
  element("result").classList.remove("waiting");
  element("time").textContent = "";
  element("copy").disabled = true;
}

/** Give the worker a text; "" ends an older one. */
function send(text) {
  latest += 1;
  clear();
  const direction = element("direction").selectedIndex;
  worker.postMessage({ kind: "translate", number: latest, text, direction });
}

function translate(event) {
  event?.preventDefault();
  if (!ready) return;
  showError("");
  const text = element("source").value;
  send(text.trim() ? text : "");
  if (!text.trim()) return;
  element("result").classList.add("waiting");
  element("time").textContent = "…";
}

function fail(problem) {
  if (!ready) element("loading").hidden = true;
  clear();
  showError(problem);
}

const answers = {
  loading({ bytes, of }) {
    element("progress").value = bytes / of;
    element("loaded").textContent = `${size(bytes)} of ${size(of)}`;
  },
  ready({ bytes, seconds, directions: given }) {
    ready = true;
    offer(given);
    element("loading").hidden = true;
    element("ready").textContent =
      `${size(bytes)}, loaded in ${duration(seconds)}. From here on it works without a network.`;
    element("translate").disabled = false;
  },
  part({ number, text, done, of }) {
    if (number !== latest) return;
    element("result").textContent = text;
    element("time").textContent = of > 1 ? `${done} of ${of}` : "…";
  },
  done({ number, text, sentences, seconds }) {
    if (number !== latest || !text) return;
    element("result").textContent = text;
    element("result").classList.remove("waiting");
    element("time").textContent = sentences
      ? `${count(sentences, "sentence")}, ${duration(seconds / sentences)} a sentence`
      : "no words to translate";
    element("copy").disabled = false;
  },
  failed({ number, problem }) {
    if (number === latest) fail(problem);
  },
};

function start() {
  if (location.protocol === "file:") {
    fail("Browsers load no model from a file. Start a server in this folder: python -m http.server");
    return;
  }
  showModel().catch((error) => showError(`The model card cannot be shown. ${error.message}`));
  // Out of a blob it inherits this page's policy: it cannot reach other servers either.
  const code = `import ${JSON.stringify(new URL("worker.js", document.baseURI).href)};`;
  const blob = new Blob([code], { type: "text/javascript" });
  worker = new Worker(URL.createObjectURL(blob), { type: "module" });
  worker.addEventListener("message", ({ data }) => answers[data.kind](data));
  worker.addEventListener("error", () =>
    fail("The model cannot be run. The browser may be too old, or a file of this folder is missing."),
  );
  worker.postMessage({ kind: "load", number: latest });
}

listen(translate);
element("direction").addEventListener("change", () => {
  showDirection();
  send("");
});
start();

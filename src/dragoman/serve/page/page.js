"use strict";

const PAUSE_MS = 500; // without a key: then what was typed is translated
const FILES = {
  ...{ ".txt": "text", ".srt": "srt", ".vtt": "vtt", ".md": "markdown", ".markdown": "markdown" },
  ...{ ".html": "html", ".htm": "html", ".xhtml": "html" },
};
const ENDINGS = Object.keys(FILES);
const STREAMED = ["text", "html"]; // line by line: a file may take longer than one answer
const SURE_PERCENT = 50;
const LARGEST_FILE_BYTES = 1_000_000; // as a body of the server

let models = [];
let pairs = []; // of languages; the source is "auto" if it is detected
let names = {}; // of languages, by code
let detects = false; // whether the server tells languages apart
let detectedSource = null; // of the translation that is shown
let file = null; // what was opened, until the text is changed
let asking = new AbortController(); // of the latest request
let pause = 0;

const nameOf = (code) => (code === "auto" ? "Detect language" : (names[code] ?? code));

const BROKEN_OFF = "The server's answer broke off. Try again.";

/** The answer; an Error in words for people if there is none. */
async function send(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const options = body && { method: "POST", headers, body: JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(path, options || {});
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  throw new Error(answer?.error || `The server answered ${response.status}.`);
}

/** The answer's JSON. */
async function ask(path, body, signal) {
  const response = await send(path, body, signal);
  return response.json().catch(() => {
    throw new Error(BROKEN_OFF);
  });
}

/** Paragraph by paragraph: all in one, one would have to look for the few words that differ. A
 * click on an alternative puts it into the translation, in exchange for what is there. */
function showAlternatives(best, alternatives) {
  const paragraphs = best.split("\n");
  const others = alternatives.map((one) => one.text.split("\n"));
  const blocks = paragraphs.flatMap((paragraph, at) => {
    // Each text once: other pieces may spell the same.
    const texts = new Set(others.map((lines) => lines[at]?.trim()).filter(Boolean));
    texts.delete(paragraph.trim());
    if (!texts.size) return [];
    const heading = made("p", paragraph);
    const list = made("ul");
    for (const text of texts) {
      const button = made("button", text);
      button.type = "button";
      button.addEventListener("click", () => {
        [paragraphs[at], button.textContent] = [button.textContent, paragraphs[at]];
        heading.textContent = paragraphs[at];
        showText(paragraphs.join("\n"));
      });
      const item = made("li");
      item.append(button);
      list.append(item);
    }
    return paragraphs.length > 1 ? [heading, list] : [list];
  });
  element("alternatives").replaceChildren(...blocks);
  element("others").hidden = !blocks.length;
}

/** A translation; of a calibrated model each sentence in its colour. */
function showText(text, segments = []) {
  const isColoured = segments.some((one) => one.colour);
  element("legend").hidden = !isColoured;
  element("result").replaceChildren(...(isColoured ? segments.map(shownSegment) : [text]));
}

function shownSegment({ text, colour, confidence }) {
  const shown = document.createElement("span");
  shown.textContent = text;
  if (colour) {
    shown.className = colour;
    shown.title = `${Math.round(100 * confidence)} of 100 such sentences are right`;
  }
  return shown;
}

function made(kind, text = "") {
  const block = document.createElement(kind);
  block.dir = "auto";
  block.textContent = text;
  return block;
}

/** An older translation beside new text would mislead. */
function clear() {
  showText("");
  element("result").classList.remove("waiting");
  element("time").textContent = "";
  element("copy").disabled = true;
  element("save").hidden = true;
  showDetected(null);
  showDoubt("");
  showAlternatives("", []);
}

/** Name the language that was found in the place where it can be chosen. */
function showDetected(found) {
  detectedSource = found?.language ?? null;
  const option = element("from").querySelector("[value=auto]");
  const how = found?.confidence > SURE_PERCENT ? "detected" : "unsure";
  if (option) option.textContent = found ? `${nameOf(found.language)} (${how})` : nameOf("auto");
  showSwap();
}

/** Say that a text is not in the language that was chosen for it. */
async function showOtherLanguage(text, signal) {
  const pair = chosenPair();
  if (!detects || !pair || pair.source === "auto") return;
  const answer = await ask("/detect", { text }, signal).catch(() => null);
  const found = answer?.languages[0];
  if (signal.aborted || !(found?.confidence > SURE_PERCENT) || found.language !== pair.target) return;
  showDoubt(`The text seems to be ${nameOf(found.language)} already.`);
}

function showDoubt(words) {
  element("doubt").textContent = words;
}

async function translate(event) {
  event?.preventDefault();
  clearTimeout(pause);
  asking.abort();
  const own = (asking = new AbortController());
  showError("");
  if (!element("source").value.trim()) {
    clear();
    return;
  }
  element("result").classList.add("waiting");
  element("time").textContent = "…";
  try {
    if (file && STREAMED.includes(file.format)) await translateByLine(own.signal);
    else await translateAtOnce(own.signal);
  } catch (error) {
    if (own.signal.aborted) return;
    clear();
    showError(error.message);
  } finally {
    if (!own.signal.aborted) element("result").classList.remove("waiting");
  }
}

const wanted = (text) => {
  const pair = chosenPair();
  return { text, source: pair?.source, target: pair?.target };
};

async function translateAtOnce(signal) {
  const body = file
    ? { ...wanted(file.text), format: file.format }
    : { ...wanted(element("source").value), alternatives: 3, segments: true };
  const answer = await ask("/translate", body, signal);
  if (signal.aborted) return;
  const best = answer.translations[0];
  showText(best.text, best.segments ?? []);
  showDoubt("");
  showDone(best.detected && { ...best.detected, language: best.source }, best.target, answer.seconds);
  showAlternatives(best.text, best.alternatives);
  showOtherLanguage(body.text, signal);
}

async function translateByLine(signal) {
  const { format, text } = file;
  const started = performance.now();
  const response = await send("/translate/stream", { ...wanted(text), format }, signal);
  clear();
  element("result").classList.add("waiting");
  let detected = null;
  let source = 0; // characters that are translated
  for await (const line of linesOf(response)) {
    if (signal.aborted) return;
    if (line.error) throw new Error(line.error);
    element("result").append((line.index ? "\n" : "") + line.text);
    detected ??= line.detected;
    source += line.source.length + 1;
    element("time").textContent = `${Math.floor((100 * source) / (text.length + 1))}%`;
  }
  if (source !== text.length + 1) throw new Error(BROKEN_OFF);
  showDone(detected, chosenPair()?.target, (performance.now() - started) / 1000);
}

/** The objects of a body of JSON lines. */
async function* linesOf(response) {
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read().catch(() => {
      throw new Error(BROKEN_OFF);
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

function showDone(detected, target, seconds) {
  showDetected(detected);
  element("result").lang = element("alternatives").lang = target ?? ""; // how it is read aloud
  element("time").textContent = duration(seconds);
  element("copy").disabled = false;
  element("save").hidden = !file;
}

function openDropped(files) {
  if (files.length === 1) openFile(files[0]);
  else showError("Drop one file at a time.");
}

/** Put a file's text into the field, and translate it. */
async function openFile(given) {
  const format = FILES[given.name.toLowerCase().slice(given.name.lastIndexOf("."))];
  try {
    if (!format) throw new Error(`${given.name}: open a file that ends in ${ENDINGS.join(", ")}`);
    if (given.size > LARGEST_FILE_BYTES) throw new Error(`${given.name}: is larger than 1 MB`);
    const bytes = await given.arrayBuffer();
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      throw new Error(`${given.name}: is not text in UTF-8`);
    }
    file = { name: given.name, format, text }; // the field turns \r\n into \n
  } catch (error) {
    showError(error.message);
    return;
  }
  element("source").value = file.text;
  element("hint").textContent = file.name;
  translate();
}

function saveFile() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([element("result").textContent]));
  const dot = file.name.lastIndexOf(".");
  link.download = `${file.name.slice(0, dot)}.${element("result").lang}${file.name.slice(dot)}`;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** What is in the field is no longer a file's text. */
function forgetFile() {
  file = null;
  element("hint").textContent = "";
}

function chosenPair() {
  const [source, target] = [element("from").value, element("to").value];
  return pairs.find((pair) => pair.source === source && pair.target === target);
}

/** The source to translate back into: the chosen one, or that of the text; null if unknown. */
function swapped() {
  const pair = chosenPair();
  const source = pair?.source === "auto" ? detectedSource : pair?.source;
  return pairs.find((one) => one.source === pair?.target && one.target === source);
}

function showSwap() {
  element("swap").disabled = !swapped();
  element("swap").title = swapped() ? "Swap the languages" : "No model translates back";
}

function swap() {
  const back = swapped();
  if (!back) return;
  const text = element("result").textContent;
  showSources(back);
  if (text) {
    forgetFile();
    element("source").value = text;
  }
  translate();
}

function offer(select, options, chosen) {
  select.replaceChildren(...options.map(([value, name]) => new Option(name, value)));
  select.value = chosen;
}

const byName = ([, one], [, other]) => one.localeCompare(other);

/** The languages to translate from; then those that this one can be translated into. */
function showSources(pair) {
  const sources = [...new Set(pairs.map((one) => one.source))].filter((code) => code !== "auto");
  const options = sources.map((code) => [code, nameOf(code)]).sort(byName);
  if (pairs.some((one) => one.source === "auto")) options.unshift(["auto", nameOf("auto")]);
  offer(element("from"), options, pair?.source);
  showTargets(pair?.target);
}

function showTargets(target) {
  const options = pairs
    .filter((pair) => pair.source === element("from").value)
    .map(({ target, via }) => [target, nameOf(target) + (via ? `, via ${nameOf(via)}` : "")]);
  const kept = options.some(([code]) => code === target);
  offer(element("to"), options.sort(byName), kept ? target : options[0]?.[0]);
  showModel();
}

function showModel() {
  const pair = chosenPair();
  element("source").lang = pair && pair.source !== "auto" ? pair.source : "";
  element("card").replaceChildren(
    ...models.filter((model) => pair && translates(model, pair)).map(shownCard),
  );
  showSwap();
}

/** A card as the server wrote it: HTML of the model itself is text in it. */
function shownCard({ card_html: html }) {
  const shown = document.createElement("article");
  shown.innerHTML = html;
  return shown;
}

/** A pair whose source is detected for each target, if there are several sources. */
function detected(pairs) {
  if (new Set(pairs.map((pair) => pair.source)).size < 2) return [];
  const targets = new Set(pairs.map((pair) => pair.target));
  return [...targets].map((target) => ({ source: "auto", target, via: null }));
}

/** Whether the model is the one of the pair, or one of the two. */
function translates(model, { source, target, via }) {
  const steps = via ? [[source, via], [via, target]] : [[source, target]];
  return steps.some(([from, to]) => [model.source, "auto"].includes(from) && model.target === to);
}

async function start() {
  try {
    models = await ask("/models");
    const languages = await ask("/pairs");
    names = languages.names;
    detects = languages.detects;
    pairs = languages.pairs.concat(languages.detects ? detected(languages.pairs) : []);
  } catch (error) {
    showError(error.message);
    return;
  }
  showSources(pairs[0]);
}

/** Translate in a moment; at once what was pasted. */
function typed(event) {
  if (event.isComposing) return; // half a character of Chinese or Japanese
  forgetFile();
  clearTimeout(pause);
  pause = setTimeout(translate, event.inputType?.startsWith("insertFrom") ? 0 : PAUSE_MS);
}

listen(translate);
element("source").addEventListener("input", typed);
element("source").addEventListener("compositionend", typed);
element("from").addEventListener("change", () => {
  showTargets(element("to").value);
  translate();
});
element("to").addEventListener("change", () => {
  showModel();
  translate();
});
element("swap").addEventListener("click", swap);
element("file").accept = ENDINGS.join(",");
element("open").addEventListener("click", () => element("file").click());
element("file").addEventListener("change", () => {
  if (element("file").files.length) openFile(element("file").files[0]);
  element("file").value = ""; // so that the same one can be opened again
});
element("save").addEventListener("click", saveFile);
// Anywhere on the page: beside the field the browser would open the file in its place.
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    if (!event.dataTransfer.types.includes("Files")) return; // text is dropped into the field
    event.preventDefault();
    element("form").classList.toggle("dropping", kind === "dragover");
    if (kind === "drop") openDropped([...event.dataTransfer.files]);
  });
}
start();

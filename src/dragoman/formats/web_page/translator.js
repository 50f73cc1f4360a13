// A text in one language becomes one in another: sentence by sentence, by greedy search.
//
// The same search as dragoman's model/search.py with a beam of 1.

import { UNKNOWN } from "./pieces.js";
import { Normalizer, Sentences } from "./text.js";

const PAD = 0;
const EOS = 3;

/** A model with its two vocabularies. */
export class Translator {
  /**
   * settings: of web.json. source, target: Pieces.
   * run: runs the graphs; `encode(ids)` begins a sentence and returns a state, and
   * `step(state, id)` gives the logits of what follows a piece.
   */
  constructor(settings, source, target, run) {
    this.settings = settings;
    this.source = source;
    this.target = target;
    this.run = run;
    this.normalizer = new Normalizer(settings);
    this.sentences = new Sentences(settings.sentences);
  }

  /** Parts of a text in order: [text, whether it is a sentence to translate]. */
  parts(text) {
    return [...this.sentences.parts(text)];
  }

  /**
   * The translation of one sentence; of a very long one, piece by piece.
   *
   * direction: its number in the settings.
   */
  async translate(sentence, direction) {
    const { token } = this.settings.directions[direction];
    const prefix = token ? [this.source.number(token)] : [];
    const chunks = this.chunks(this.normalizer.normalize(sentence), prefix);
    if (!this.#hasSense(chunks.flat(), sentence)) return sentence;
    const found = [];
    for (const ids of chunks) {
      found.push(this.target.decode(await this.search(ids)));
    }
    return found.join(" ");
  }

  /**
   * Whether the model can know what a sentence says: not if it is blank, or has unknown pieces and
   * no known one with a letter. Then it would invent a translation.
   */
  #hasSense(ids, sentence) {
    if (ids.some((id) => this.source.hasLetters[id])) return true;
    return !ids.includes(UNKNOWN) && /[^\p{C}\p{Z}]/u.test(sentence);
  }

  /** Ids of the parts of a normalised text, each after the prefix and with it of at most `max_pieces`. */
  chunks(text, prefix) {
    const most = Math.max(1, this.settings.max_pieces - prefix.length);
    const ids = this.source.encode(text);
    if (ids.length <= most) return ids.length ? [[...prefix, ...ids]] : [];
    const chunks = [[]];
    for (const [sentence] of this.sentences.split(text)) {
      let parts = [this.source.encode(sentence)];
      if (parts[0].length > most) {
        parts = sentence.split(" ").flatMap((word) => slices(this.source.encode(word), most));
      }
      for (const part of parts) {
        if (chunks.at(-1).length + part.length > most) chunks.push([]);
        chunks.at(-1).push(...part);
      }
    }
    return chunks.filter((chunk) => chunk.length).map((chunk) => [...prefix, ...chunk]);
  }

  /** The likeliest piece after each piece, until the end of the sentence or the length limit. */
  async search(ids) {
    const { start_ids: starts, max_length_ratio: ratio, max_length_extra: extra } = this.settings;
    const limit = Math.max(1, Math.trunc(ids.length * ratio + extra));
    const state = await this.run.encode([...ids, EOS]);
    for (const id of starts.slice(0, -1)) await this.run.step(state, id);
    const found = [];
    let last = starts.at(-1);
    for (let length = starts.length; ; length++) {
      const logits = await this.run.step(state, last);
      if (this.settings.end_at_limit && length === limit) break;
      if (this.settings.never_padding) logits[PAD] = -Infinity;
      for (const id of repeating(found, this.settings.no_repeat_ngram_size)) logits[id] = -Infinity;
      last = largest(logits);
      if (last === EOS) break;
      found.push(last);
      if (length >= limit) break;
    }
    return found;
  }
}

/** Pieces that would end a row of `size` pieces which is there already. */
function* repeating(ids, size) {
  if (!size || ids.length < size) return;
  const last = ids.slice(ids.length - size + 1);
  for (let start = 0; start + size <= ids.length; start++) {
    if (last.every((id, place) => ids[start + place] === id)) yield ids[start + size - 1];
  }
}

function slices(ids, size) {
  const parts = [];
  for (let start = 0; start < ids.length; start += size) parts.push(ids.slice(start, start + size));
  return parts;
}

function largest(values) {
  let best = 0;
  for (let place = 1; place < values.length; place++) if (values[place] > values[best]) best = place;
  return best;
}

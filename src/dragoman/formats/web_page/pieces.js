// SentencePiece: text to the numbers of pieces and back, for models of dragoman (BPE or unigram).
//
// Both searches are those of SentencePiece itself, sums of scores in the same 32 bits included
// (bpe_model.cc, and EncodeOptimized in unigram_model.cc), so the pieces are the same.

const EOS = 3; // padding, unknown, beginning and end of a sentence are 0 to 3
export const UNKNOWN = 1;
const UNIGRAM = 1;
const USER_DEFINED = 4;
const NORMAL = 1;
const UNKNOWN_PENALTY = 10;
const SPACE = "▁";
const SEPARATOR = "\u{10FA08}"; // between the sentences of a paragraph; it stands for no text

/** One SentencePiece model. */
export class Pieces {
  /** content: the bytes of its file. */
  constructor(content) {
    const model = readModel(content);
    this.pieces = model.pieces;
    this.unigram = model.modelType === UNIGRAM;
    this.byText = new Map();
    this.hasLetters = this.pieces.map(
      ({ type, text }) => (type === NORMAL || type === USER_DEFINED) && /\p{L}/u.test(text),
    );
    this.defined = []; // pieces that are never cut, the longest first
    let least = Infinity;
    let most = -Infinity;
    this.longest = 1;
    this.pieces.forEach((piece, id) => {
      if (piece.type !== NORMAL && piece.type !== USER_DEFINED) return;
      this.byText.set(piece.text, id);
      this.longest = Math.max(this.longest, piece.text.length);
      if (piece.type === USER_DEFINED) {
        this.defined.push(piece.text);
      } else {
        least = Math.min(least, piece.score);
        most = Math.max(most, piece.score);
      }
    });
    this.defined.sort((a, b) => b.length - a.length);
    this.unknownScore = Math.fround(least - UNKNOWN_PENALTY);
    this.most = most;
  }

  /** Ids of a normalised text, without special ids. */
  encode(text) {
    if (!text) return [];
    const marked = SPACE + text.replaceAll(" ", SPACE);
    const ids = this.unigram ? this.#likeliest(marked) : this.#merged(marked);
    // Unknown characters in a row are one unknown piece.
    return ids.filter((id, place) => id !== UNKNOWN || ids[place - 1] !== UNKNOWN);
  }

  /** The id of a piece that no text is cut into, such as <2de>. */
  number(text) {
    return this.pieces.findIndex((piece) => piece.text === text);
  }

  /** The text of ids; special ids are passed over. */
  decode(ids) {
    let text = "";
    for (const id of ids) {
      let piece = this.pieces[id].text;
      if (id <= EOS || piece === SEPARATOR) continue;
      if (!text && piece.startsWith(SPACE)) piece = piece.slice(SPACE.length);
      text += piece.replaceAll(SPACE, " ");
    }
    return text;
  }

  /** Characters, or pieces that are never cut. */
  *#symbols(text) {
    let start = 0;
    while (start < text.length) {
      const defined = this.defined.find((piece) => text.startsWith(piece, start));
      const symbol = defined ?? String.fromCodePoint(text.codePointAt(start));
      yield { text: symbol, whole: defined !== undefined };
      start += symbol.length;
    }
  }

  /** BPE: the two neighbours of the best score become one, until there are none. */
  #merged(text) {
    const symbols = [...this.#symbols(text)].map((symbol, place, all) => ({
      ...symbol,
      before: place - 1,
      after: place + 1 < all.length ? place + 1 : -1,
    }));
    const pairs = new Heap((a, b) => a.score > b.score || (a.score === b.score && a.left < b.left));
    const add = (left, right) => {
      if (left < 0 || right < 0 || symbols[left].whole || symbols[right].whole) return;
      const joined = symbols[left].text + symbols[right].text;
      const id = this.byText.get(joined);
      if (id !== undefined) pairs.push({ left, right, joined, score: this.pieces[id].score });
    };
    for (let place = 1; place < symbols.length; place++) add(place - 1, place);
    for (let pair = pairs.pop(); pair; pair = pairs.pop()) {
      const left = symbols[pair.left];
      const right = symbols[pair.right];
      // Either may have become part of another by now.
      if (!left.text || !right.text || left.text + right.text !== pair.joined) continue;
      left.text = pair.joined;
      left.after = right.after;
      if (right.after >= 0) symbols[right.after].before = pair.left;
      right.text = "";
      add(left.before, pair.left);
      add(pair.left, left.after);
    }
    return symbols.filter((one) => one.text).map((one) => this.byText.get(one.text) ?? UNKNOWN);
  }

  /** Unigram: the segmentation with the largest sum of scores (Viterbi). */
  #likeliest(text) {
    const best = new Array(text.length + 1).fill(null);
    best[0] = { score: 0, start: -1, id: UNKNOWN };
    const offer = (start, end, score, id) => {
      const sum = score + best[start].score;
      if (best[end] === null || sum > best[end].score) {
        best[end] = { score: Math.fround(sum), start, id };
      }
    };
    const bytes = new TextEncoder();
    let width;
    for (let start = 0; start < text.length; start += width) {
      width = text.codePointAt(start) > 0xffff ? 2 : 1;
      let single = false;
      const last = Math.min(text.length, start + this.longest);
      for (let end = start + width; end <= last; end++) {
        const piece = text.slice(start, end);
        const id = this.byText.get(piece);
        if (id === undefined) continue;
        const defined = this.pieces[id].type === USER_DEFINED;
        const bonus = () => bytes.encode(piece).length * this.most - 0.1;
        offer(start, end, defined ? bonus() : this.pieces[id].score, id);
        single ||= end === start + width;
      }
      if (!single) offer(start, start + width, this.unknownScore, UNKNOWN);
    }
    const ids = [];
    for (let end = text.length; end > 0; end = best[end].start) ids.push(best[end].id);
    return ids.reverse();
  }
}

/** A queue whose first element is the one that no other is `before`. */
class Heap {
  constructor(before) {
    this.before = before;
    this.items = [];
  }

  push(item) {
    const items = this.items;
    let place = items.push(item) - 1;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      if (!this.before(item, items[parent])) break;
      items[place] = items[parent];
      place = parent;
    }
    items[place] = item;
  }

  pop() {
    const items = this.items;
    const first = items[0];
    const item = items.pop();
    if (items.length === 0) return first;
    let place = 0;
    for (;;) {
      let child = 2 * place + 1;
      if (child >= items.length) break;
      if (child + 1 < items.length && this.before(items[child + 1], items[child])) child += 1;
      if (!this.before(items[child], item)) break;
      items[place] = items[child];
      place = child;
    }
    items[place] = item;
    return first;
  }
}

/** Pieces and kind of a model, from the protocol buffer in sentencepiece_model.proto. */
function readModel(content) {
  const pieces = [];
  let modelType = UNIGRAM;
  for (const [field, value] of fields(content)) {
    if (field === 1) {
      const piece = { text: "", score: 0, type: NORMAL };
      for (const [key, part] of fields(value)) {
        if (key === 1) piece.text = new TextDecoder().decode(part);
        if (key === 2) piece.score = part;
        if (key === 3) piece.type = part;
      }
      pieces.push(piece);
    } else if (field === 2) {
      for (const [key, part] of fields(value)) if (key === 3) modelType = part;
    }
  }
  return { pieces, modelType };
}

/** [number of a field, its value]: a number, or bytes. */
function* fields(content) {
  const view = new DataView(content.buffer, content.byteOffset, content.byteLength);
  let place = 0;
  const varint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = view.getUint8(place++);
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (place < content.length) {
    const key = varint();
    const kind = key % 8;
    let value;
    if (kind === 0) {
      value = varint();
    } else if (kind === 5) {
      value = view.getFloat32(place, true);
      place += 4;
    } else if (kind === 1) {
      value = view.getFloat64(place, true);
      place += 8;
    } else {
      const length = varint();
      value = content.subarray(place, place + length);
      place += length;
    }
    yield [Math.floor(key / 8), value];
  }
}

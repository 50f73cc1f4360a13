// Text as the model was trained on it, and where its sentences end: the rules of dragoman's
// corpus/normalize.py and evaluation/sentences.py, with their lists from web.json.

const LONGEST_RUN = 30; // combining marks, see UAX #15, section 13
const LONGEST_SORTED = 10 * LONGEST_RUN;
const JOINER = "\u034f";
// What Python calls space, which is not what JavaScript does.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACE_AT_END = new RegExp(`[${SPACE}]+$`, "u");
const SPACE_AT_START = new RegExp(`^[${SPACE}]+`, "u");
const LONGEST_ABBREVIATION = 20;

/** Brings text into the form of the training text. */
export class Normalizer {
  /** marks: code points at which combining marks begin and end, in turn. */
  constructor({ lowercase, marks, spaces }) {
    this.lowercase = lowercase;
    this.marks = marks;
    this.spaces = new RegExp(`[\\t\\r${spaces}]`, "gu");
  }

  /** The normalised form of a text of one line. */
  normalize(text) {
    let written = text.replace(/\p{Surrogate}/gu, "\ufffd");
    if (this.lowercase) written = written.toLowerCase();
    written = this.#cutRuns(written.replaceAll("\ufeff", ""), LONGEST_SORTED);
    written = this.#cutRuns(written.normalize("NFC"), LONGEST_RUN);
    return written.replace(this.spaces, " ").replace(/ {2,}/g, " ").replace(/^ | $/g, "");
  }

  /** The text with a joiner after every 30 marks of each run of more marks than `longest`. */
  #cutRuns(text, longest) {
    if (text.length <= longest) return text;
    const written = [];
    let run = [];
    const endRun = () => {
      const size = run.length > longest ? LONGEST_RUN : longest;
      for (let start = 0; start < run.length; start += size) {
        if (start) written.push(JOINER);
        written.push(...run.slice(start, start + size));
      }
      run = [];
    };
    for (const character of text) {
      if (this.#isMark(character.codePointAt(0))) {
        run.push(character);
      } else {
        endRun();
        written.push(character);
      }
    }
    endRun();
    return written.join("");
  }

  #isMark(code) {
    let low = 0;
    let high = this.marks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.marks[middle] <= code) low = middle + 1;
      else high = middle;
    }
    return low % 2 === 1; // so many bounds lie at or before it
  }
}

/** Splits text into sentences. */
export class Sentences {
  constructor(abbreviations) {
    this.end = new RegExp(
      `(?<![.!?…])[.!?…]+["'»”’)\\]]*[${SPACE}]+` + // marks, what closes with them, and space
        `|[。！？]+[」』”’）]*[${SPACE}]*` + // marks that no space follows
        `|(?<![${SPACE.replace("\\t-\\r", "\\t\\v-\\r")}])[${SPACE.replace("\\t-\\r", "\\t\\v-\\r")}]*\\n[${SPACE}]*`,
      "gu",
    );
    const letter = "[\\p{L}\\p{Nl}\\p{No}]";
    this.abbreviation = new RegExp(
      `(?:^|[${SPACE}(\\["'„“«])(?:` +
        `${letter}|(?:${letter}\\.[${SPACE}]?)+${letter}|\\p{Nd}{1,3}|${abbreviations.join("|")}` +
        ")\\.$",
      "u",
    );
  }

  /** [sentence, the space after it], in order; a sentence may be empty at the start. */
  *split(text) {
    let start = 0;
    for (const match of text.matchAll(this.end)) {
      const end = match.index + match[0].length;
      const marks = match[0].replace(SPACE_AT_END, "");
      if (marks && !this.#endsSentence(text, start, match)) continue;
      yield [text.slice(start, match.index + marks.length), text.slice(match.index + marks.length, end)];
      start = end;
    }
    if (start < text.length) {
      const rest = text.slice(start);
      const kept = rest.replace(SPACE_AT_END, "");
      yield [kept, rest.slice(kept.length)];
    }
  }

  /** [part, whether it is translated]: sentences, and the space and signs between them. */
  *parts(text) {
    const space = text.match(SPACE_AT_START)?.[0] ?? "";
    if (space) yield [space, false];
    for (const [sentence, after] of this.split(text.slice(space.length))) {
      if (sentence) yield [sentence, /\p{L}/u.test(sentence)];
      if (after) yield [after, false];
    }
  }

  /** At the end of a line; else not after an abbreviation, and not before a small letter. */
  #endsSentence(text, start, match) {
    if (!match[0].startsWith(".") || match[0].includes("\n")) return true;
    if (/^\p{Lowercase}/u.test(text.slice(match.index + match[0].length))) return false;
    const mark = match.index + 1;
    const before = text.slice(Math.max(start, mark - LONGEST_ABBREVIATION), mark);
    return match[0].replace(SPACE_AT_END, "") !== "." || !this.abbreviation.test(before);
  }
}

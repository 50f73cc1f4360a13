// Text as the model was trained on it, and where its sentences end: the rules of dragoman's
// corpus/normalize.py and evaluation/sentences.py, with their lists from web.json.

const LONGEST_RUN = 30; // combining marks, see UAX #15, section 13
const LONGEST_SORTED = 10 * LONGEST_RUN;
const JOINER = "\u034f";
// What Python calls space, which is not what JavaScript does.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACE_AT_END = new RegExp(`[${SPACE}]+$`, "u");
const SPACE_AT_START = new RegExp(`^[${SPACE}]+`, "u");
const LETTER = "[\\p{L}\\p{Nl}\\p{No}]";

/** Brings text into the form of the training text. */
export class Normalizer {
  /** marks: code points at which combining marks begin and end, in turn. */
  constructor({ lowercase, invisible, marks, spaces }) {
    this.lowercase = lowercase;
    this.invisible = new RegExp(`[${invisible}]`, "gu");
    this.marks = marks;
    this.spaces = new RegExp(`[\\t\\r${spaces}]`, "gu");
  }

  /** The normalised form of a text of one line. */
  normalize(text) {
    let written = text.replace(/\p{Surrogate}/gu, "\ufffd");
    if (this.lowercase) written = written.toLowerCase();
    written = this.#cutRuns(written.replace(this.invisible, ""), LONGEST_SORTED);
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
  /** rules: RULES of evaluation/sentences.py. */
  constructor(rules) {
    this.rules = rules;
    const inLine = SPACE.replace("\\t-\\r", "\\t\\v-\\r");
    const marks = escaped(rules.marks);
    const sure = escaped(rules.sure_marks + rules.wide_stops);
    const any = marks + sure;
    const closing = escaped(rules.closing);
    const space = `[${closing}]*(?:[${inLine}]»(?=[${SPACE}]))?[${SPACE}]+`;
    const letterMarks = rules.letter_marks.map(([of, mark]) => `|${mark}(?<=[${of}]${mark})${space}`);
    this.end = new RegExp(
      `[${marks}](?<![${any}][${marks}])[${marks}]*${space}${letterMarks.join("")}` +
        `|[${sure}][${any}]*(?:[${SPACE}]+[${sure}][${any}]*)*` +
        `[${escaped(rules.sure_closing)}]*(?:["'][${closing}]*(?=[${SPACE}]|$))?[${SPACE}]*` +
        `|\\n[${SPACE}]*`,
      "gu",
    );
    this.wordStart = new RegExp(`[${SPACE}${escaped(rules.opening)}]`, "u");
    this.withoutCapitals = new RegExp(`[${rules.without_capitals}]`, "u");
    this.year = new RegExp(`\\p{Nd}[${SPACE}][${rules.years}]$`, "u");
    this.short = new RegExp(`^(?:${LETTER}|(?:${LETTER}\\.-?)+${LETTER}|\\p{Nd}{1,3}|${LETTER}+str)$`, "u");
    this.listed = new Set(rules.abbreviations);
  }

  /** [sentence, the space after it], in order; a sentence may be empty at the start. */
  *split(text) {
    let start = 0;
    for (const match of text.matchAll(this.end)) {
      const end = match.index + match[0].length;
      const marks = match[0].replace(SPACE_AT_END, "");
      if (marks && !this.#endsSentence(text, start, match.index, end, marks)) continue;
      const sentence = text.slice(start, match.index + marks.length).replace(SPACE_AT_END, "");
      yield [sentence, text.slice(start + sentence.length, end)];
      start = end;
    }
    if (start < text.length) {
      const sentence = text.slice(start).replace(SPACE_AT_END, "");
      yield [sentence, text.slice(start + sentence.length)];
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

  /** Whether marks with the space after them end a sentence. */
  #endsSentence(text, start, mark, end, marks) {
    const { rules } = this;
    const space = text.slice(mark + marks.length, end);
    if (space.includes("\n")) return true;
    const following = String.fromCodePoint(text.codePointAt(end) ?? 10);
    const isNumber = /\p{Nd}/u.test(following);
    if (rules.wide_stops.includes(marks[0])) {
      if (isNumber && !space) return false;
    } else if (!rules.marks.includes(marks[0])) {
      return true;
    } else if (/\p{Lowercase}/u.test(following) && !this.withoutCapitals.test(following)) {
      if (rules.stops.includes(marks[0]) || !rules.marks.includes(marks.at(-1))) return false;
    }
    if (marks.length > 1 || !(marks === "." || rules.wide_stops.includes(marks))) return true;
    const before = text.slice(Math.max(start, mark - rules.longest_abbreviation), mark);
    const word = before.split(this.wordStart).at(-1);
    if (marks !== ".") return !/^\p{Nd}{1,3}$/u.test(word);
    const last = word.split("-").at(-1);
    const letters = last.replace(/\p{M}/gu, "");
    const isShort = /^\p{L}+$/u.test(letters) && letters.length <= rules.longest_short_word;
    const isRoman = /^[IVX]{2,8}(?![\p{L}\p{N}_])/u.test(text.slice(end, end + 10));
    if (isShort && (isNumber || isRoman || rules.before_numbers.includes(following))) return false;
    if (/^\p{Uppercase}/u.test(following) && this.year.test(before)) return true;
    return !this.#isAbbreviation(word, last);
  }

  #isAbbreviation(word, last) {
    if (this.short.test(word)) return true;
    const small = last.toLowerCase();
    const isCapital = last === last.toUpperCase() && last !== small;
    const capital = isCapital ? last[0] + small.slice(1) : last;
    return [last, capital, small].some((one) => this.listed.has(one));
  }
}

/** Characters for a set in a regular expression. */
function escaped(characters) {
  return [...characters].map((one) => `\\u{${one.codePointAt(0).toString(16)}}`).join("");
}

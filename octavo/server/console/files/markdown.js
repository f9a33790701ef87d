// The part of Markdown that models write most, as elements: nothing of a text becomes HTML.

// Marks of code are equally long, and short: what a model repeats must cost time that grows with it.
const SPANS = /(?<!`)(`{1,8})(?!`)(.+?)(?<!`)\1(?!`)|\*\*(.+?)\*\*|\*([^\s*](?:[^*]*[^\s*])?)\*/g;

function spans(text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(SPANS)) {
    found.push(text.slice(end, match.index));
    if (match[2] !== undefined) found.push(el("code", "", match[2]));
    else found.push(match[3] !== undefined ? el("strong", "", match[3]) : el("em", "", match[4]));
    end = match.index + match[0].length;
  }
  found.push(text.slice(end));
  return found;
}

/** Make an element of a text; there may be more spans than a call has room for. */
function spanned(name, text) {
  const made = el(name, "");
  for (const each of spans(text)) made.append(each);
  return made;
}

const HEAD = /^#{1,6}\s+(.*)$/;
const ITEM = /^\s*(?:[-*+]|(\d+)[.)])\s+(.*)$/;

function listOf(lines) {
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item) items.push(item[2]);
    else items[items.length - 1] += `\n${line.trim()}`;
  }
  const numbered = ITEM.exec(lines[0])[1];
  const list = numbered === undefined ? el("ul", "") : el("ol", "list");
  if (numbered > 1) list.start = Number(numbered);
  for (const each of items) list.append(spanned("li", each));
  return list;
}

/** Add the elements of lines without an empty one: headings, and then a list or a paragraph. */
function addBlock(found, lines) {
  let at = 0;
  for (; at < lines.length && HEAD.test(lines[at]); at++) found.push(spanned("h3", HEAD.exec(lines[at])[1]));
  const rest = lines.slice(at);
  if (rest.length) found.push(ITEM.test(rest[0]) ? listOf(rest) : spanned("p", rest.join("\n")));
}

/** Return the elements of a text; a fence that is still open is code too. */
function markdown(text) {
  const found = [];
  let lines = [];
  let fence = null;
  const close = () => {
    addBlock(found, lines);
    lines = [];
  };
  const code = () => found.push(el("pre", "", el("code", "", lines.join("\n"))));
  for (const line of text.split("\n")) {
    const mark = /^\s*(```+|~~~+)/.exec(line);
    if (fence !== null) {
      if (mark && mark[1].startsWith(fence)) { code(); lines = []; fence = null; } else lines.push(line);
    } else if (mark) { close(); fence = mark[1]; } else if (!line.trim()) close();
    else lines.push(line);
  }
  if (fence !== null) code(); else close();
  return found;
}

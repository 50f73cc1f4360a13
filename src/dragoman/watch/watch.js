"use strict";
const live = document.getElementById("live");
const lost = document.getElementById("lost");
let shown = live.innerHTML;
async function look() {
  try {
    const answer = await fetch("live", {cache: "no-store"});
    if (!answer.ok) throw new Error(answer.statusText);
    const text = await answer.text();
    if (text !== shown) {
      live.innerHTML = shown = text;
      document.title = live.firstElementChild.dataset.title;
    }
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
  setTimeout(look, document.hidden ? 10000 : 2000);
}
setTimeout(look, 2000);

// how the page looks
return {
  background: style("body", "backgroundColor"), text: style("body", "color"),
  ink: style("figure .curve", "stroke"),
  wide: document.documentElement.scrollWidth, window: innerWidth,
  empty: all(".plot > svg").filter((svg) => svg.querySelector(".axis") === null).length,
  numbers: all(".plot path").filter((path) => /NaN|Infinity/.test(path.getAttribute("d"))).length,
  dead: all("button:disabled").filter((button) => button.className !== "reset").length,
  pictures: all("img").length,
  how: all(".how").filter((text) => !text.hidden).map((text) => text.textContent),
  unseen: all("h2, h3").filter((text) => !text.getClientRects().length).map((x) => x.textContent),
  cues: all(".cue").map((cue) => [cue.hidden, cue.nextElementSibling.scrollWidth
    <= cue.nextElementSibling.clientWidth]),
};

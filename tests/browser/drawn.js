// what is drawn in the figures
return {
  texts: all("figure").map((figure) => all(".plot text", figure).map((node) => node.textContent)),
  lines: all("figure").map((figure) =>
    all(".plot .curve", figure).map((path) => path.getAttribute("d"))),
  bands: all("figure").map((figure) =>
    all(".plot .band", figure).map((path) => path.getAttribute("d"))),
  dots: all("figure").map((figure) => all(".plot .dot", figure).length),
  marks: all("figure").map((figure) => all(".plot .mark", figure).length),
  width: all(".plot")[0].clientWidth,
  reference: all(".reference").map((path) => path.getAttribute("d")),
};

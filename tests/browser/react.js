// what the first figure does when it is used
const [figure] = all("figure"), plot = figure.querySelector(".plot");
const values = () => all(".legend button", figure).map((button) =>
  all(".value, .interval", button).map((cell) => cell.textContent.trim()));
const at = () => figure.querySelector(".at").textContent;
const lines = () => all(".plot .curve", figure).length;
const texts = () => all(".plot text", figure).map((node) => node.textContent);
const reset = figure.querySelector(".reset"), buttons = all(".legend button", figure);
const width = plot.clientWidth, x = (epoch) => 56 + (width - 68) * (epoch - 1) / 39;
const key = (name) => plot.dispatchEvent(new KeyboardEvent("keydown", { key: name }));
const told = { lines: lines(), start: values(), startAt: at(), reset: reset.disabled };

pointer(plot, "pointermove", x(20) + 1, 90);
told.hover = values(); told.hoverAt = at();
told.dots = all(".plot .dot", figure).length; told.cursor = all(".cursor", figure).length;
pointer(plot, "pointermove", x(24), 90);
told.between = values();
pointer(plot, "pointerleave", 0, 0);
told.left = values(); told.leftDots = all(".plot .dot", figure).length;

buttons[0].click();
told.hidden = lines(); told.hiddenPressed = buttons[0].getAttribute("aria-pressed");
buttons[0].click();
told.shown = lines();

const before = texts();
pointer(plot, "pointerdown", x(10) - 3, 100);
pointer(plot, "pointermove", x(20), 102);
told.choice = all(".choice", figure).length;
pointer(plot, "pointerup", x(20), 102);
told.zoomed = texts(); told.zoomReset = reset.disabled;
pointer(plot, "pointermove", 56, 90);
told.zoomAt = at();
pointer(plot, "pointerleave", 0, 0);
plot.dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
told.restored = JSON.stringify(texts()) === JSON.stringify(before);
pointer(plot, "pointerdown", x(10) - 3, 60);
pointer(plot, "pointerup", x(20), 160);
told.both = texts();
reset.click();
told.again = JSON.stringify(texts()) === JSON.stringify(before);
pointer(plot, "pointerdown", x(10), 60, { pointerType: "touch" });
pointer(plot, "pointerup", x(20), 160, { pointerType: "touch" });
told.touch = [at(), JSON.stringify(texts()) === JSON.stringify(before)];
pointer(plot, "pointerleave", 0, 0);

const log = figure.querySelector(".log");
const path = () => figure.querySelector(".plot .curve").getAttribute("d");
const linear = path();
log.click();
told.log = [path() !== linear, log.getAttribute("aria-pressed")];
log.click();
told.linear = [path() === linear, log.getAttribute("aria-pressed")];

key("ArrowLeft"); key("ArrowLeft");
told.keyAt = at(); told.spoken = figure.querySelector(".spoken").textContent;
key("Escape");
told.escaped = at();

const theme = document.getElementById("theme");
told.theme = [style("body", "backgroundColor")];
theme.click(); told.theme.push(style("body", "backgroundColor"), theme.textContent);
theme.click(); told.theme.push(style("body", "backgroundColor"), theme.textContent);
return told;

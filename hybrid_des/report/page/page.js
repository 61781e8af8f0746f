// Buttons of a page: copy what stands beside them, and show one panel of several; pages are printed on light paper.
document.addEventListener("click", async (event) => {
  const { target } = event;
  if (target.matches?.(".copy")) await copy(target);
  if (target.matches?.("[role=tab]")) choosePanel(target);
});
async function copy(button) {
  const box = button.parentElement.querySelector("code");
  const written = navigator.clipboard?.writeText(box.textContent) ?? Promise.reject();
  const said = await written.then(() => "copied", () => byHand(box));
  button.textContent = said; setTimeout(() => { button.textContent = "copy"; }, 1500);
}
function byHand(box) {                                // where the clipboard is denied, as to some pages from files
  getSelection().selectAllChildren(box);
  return document.execCommand("copy") ? "copied" : "press Ctrl+C";
}
function choosePanel(tab) {
  const all = [...tab.parentElement.children], chosen = all.indexOf(tab);
  const panels = [...tab.parentElement.parentElement.children].filter((one) => one.getAttribute("role") === "tabpanel");
  all.forEach((one) => one.setAttribute("aria-selected", one === tab));
  panels.forEach((one, i) => { one.hidden = i !== chosen; });
  if (!panels[chosen].querySelector("canvas")) return;
  dress();                                            // the window may have been resized meanwhile
}

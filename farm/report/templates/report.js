"use strict";
(() => {
  for (const e of document.querySelectorAll(".js")) e.hidden = false;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const code = button.parentNode.querySelector("code");
    let done = false;
    try { await navigator.clipboard.writeText(code.textContent); done = true; } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // A sheet is opened by its address alone (it works without scripts); scripts add Escape and bring the focus back.
  let opener = null;
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#c']");
    if (link) opener = link;
    const close = event.target.closest(".close");
    if (close) { event.preventDefault(); shut(); }
  });
  const shut = () => {
    const open = document.querySelector(".sheet:target");
    if (!open) return;
    const place = [scrollX, scrollY];
    location.replace("#sheets");
    scrollTo(...place);
    (opener || document.querySelector(`a[href="#${open.id}"]`))?.focus({ preventScroll: true });
  };
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") shut(); });
  addEventListener("hashchange", () => document.querySelector(".sheet:target")?.focus({ preventScroll: true }));

  const verdict = document.getElementById("f-verdict");
  const device = document.getElementById("f-device");
  const model = document.getElementById("f-model");
  const count = document.getElementById("f-count");
  const groups = [...document.querySelectorAll(".group")].map((node) => ({
    node, model: node.dataset.model,
    rows: [...node.querySelectorAll("tbody tr")].map((row) => ({
      row, device: row.dataset.device,
      cells: [...row.querySelectorAll("td[data-verdict]")].map((td) => ({
        verdict: td.dataset.verdict, uncounted: "uncounted" in td.dataset })),
    })),
  }));
  const wanted = (cell) => !verdict.value || (verdict.value === "attention"
    ? !cell.uncounted && !["pass", "unsupported"].includes(cell.verdict) : cell.verdict === verdict.value);
  const filter = () => {
    const text = model.value.trim().toLowerCase();
    let shown = 0;
    for (const group of groups) {
      let any = false;
      for (const row of group.rows) {
        const hit = (!device.value || row.device === device.value) && row.cells.some(wanted) && group.model.includes(text);
        row.row.hidden = !hit;
        any ||= hit;
        shown += hit ? 1 : 0;
      }
      group.node.hidden = !any;
    }
    count.textContent = `${shown} rows`;
  };
  for (const control of [verdict, device, model]) control.addEventListener("input", filter);
  document.querySelector("form.filter").addEventListener("submit", (event) => event.preventDefault());
  filter();
})();

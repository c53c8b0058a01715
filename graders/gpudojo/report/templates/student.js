"use strict";
(() => {
  for (const figure of document.querySelectorAll(".call-figure")) {
    const marks = Array.from(figure.querySelectorAll(".mark"));
    if (!marks.length) continue;
    let place = -1;
    const walk = document.createElement("div");
    walk.className = "walk";
    const said = document.createElement("p");
    said.setAttribute("role", "status");
    // Operations that are alike and follow each other are one mark.
    said.textContent = `${marks.length} ${marks.length === 1 ? "mark" : "marks"}: point at one, or use the arrow keys here`;
    const show = (next) => {
      if (place >= 0) marks[place].classList.remove("on");
      place = Math.min(Math.max(next, 0), marks.length - 1);
      marks[place].classList.add("on");
      said.textContent = marks[place].querySelector("title").textContent;
      said.className = "code";
    };
    for (const [sign, label, step] of [["◀", "Previous event", -1], ["▶", "Next event", 1]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = sign;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", () => show(place + step));
      walk.append(button);
    }
    walk.append(said);
    walk.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) { event.preventDefault(); show(place + step); }
    });
    // Marks are thin: choose the one nearest to the pointer.
    const far = (mark, x, y) => {
      const box = mark.getBoundingClientRect();
      return Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom));
    };
    const point = (event) => {
      let nearest = marks.indexOf(event.target.closest(".mark"));
      if (nearest < 0) {
        const away = marks.map((mark) => far(mark, event.clientX, event.clientY));
        const least = Math.min(...away);
        if (least < 12) nearest = away.indexOf(least);
      }
      if (nearest >= 0 && nearest !== place) show(nearest);
    };
    const drawing = figure.querySelector("svg");
    drawing.addEventListener("pointermove", point);
    drawing.addEventListener("pointerdown", point);
    figure.append(walk);
  }
  // A link to something that is folded away unfolds it.
  const unfold = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();
})();

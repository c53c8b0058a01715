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
    said.textContent = `${marks.length} marks; go through them with these buttons or the arrow keys.`;
    const show = (next) => {
      if (place >= 0) marks[place].classList.remove("on");
      place = Math.min(Math.max(next, 0), marks.length - 1);
      marks[place].classList.add("on");
      said.textContent = marks[place].querySelector("title").textContent;
    };
    for (const [sign, label, step] of [["◀", "Mark before", -1], ["▶", "Next mark", 1]]) {
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
    figure.querySelector("svg").addEventListener("pointerover", (event) => {
      const mark = event.target.closest(".mark");
      if (mark) show(marks.indexOf(mark));
    });
    figure.append(walk);
  }
  const button = document.getElementById("hide-passed");
  button.parentElement.hidden = false;
  button.addEventListener("click", () => {
    const hidden = document.body.classList.toggle("hide-passed");
    button.setAttribute("aria-pressed", String(hidden));
  });
})();

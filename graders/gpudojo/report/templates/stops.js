(() => {
  // Only what can be scrolled is a stop for the keyboard.
  const stops = () => {
    for (const box of document.querySelectorAll(".scroll:not(.tall), .listing")) {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", stops);
  addEventListener("toggle", stops, true);
  stops();
})();

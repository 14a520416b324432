// Lists that one Tab enters and arrow keys move in, so that a keyboard gets past a long one at once.

/** Has arrow keys, Home and End move among the buttons of a list, of which one can be reached by Tab. */
export function rove(list) {
  const items = () => [...list.querySelectorAll("button, a[href]")];
  const only = (item) => items().forEach((one) => (one.tabIndex = one === item ? 0 : -1));
  list.addEventListener("focusin", (event) => items().includes(event.target) && only(event.target));
  list.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to === undefined || !all[to]) return;
    event.preventDefault();
    all[to].focus();
  });
  new MutationObserver(() => {
    const all = items();
    if (all.length && !all.some((one) => one.tabIndex === 0)) all[0].tabIndex = 0;
  }).observe(list, { childList: true });
}

/** A list's items, up to `step` at a time, with a button for more. `row(item)`: its content, which begins with a button. */
export function grow(list, items, row, step = 60) {
  const more = (from) => {
    const rows = items.slice(from, from + step).map((item) => {
      const line = row(item);
      line.querySelectorAll("button").forEach((button) => (button.tabIndex = -1));
      return line;
    });
    list.append(...rows);
    const left = items.length - from - step;
    if (left > 0) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "more", textContent: `Show more (${left.toLocaleString("en")} left)`, tabIndex: -1 });
      const line = document.createElement("li");
      line.append(button);
      button.addEventListener("click", () => {
        line.remove();
        more(from + step);
        list.children[from + step]?.querySelector("button")?.focus();
      });
      list.append(line);
    }
  };
  list.replaceChildren();
  more(0);
}

// The colour theme: light, dark, or the system's.

import { icon } from "./dom.js";
import { keep, recall } from "./store.js";

const THEMES = [
  { name: "auto", icon: "auto", label: "Colours: as the system has them" },
  { name: "light", icon: "sun", label: "Colours: light" },
  { name: "dark", icon: "moon", label: "Colours: dark" },
];

export function startTheme(button) {
  let at = Math.max(
    0,
    THEMES.findIndex((theme) => theme.name === recall("theme")),
  );
  const show = () => {
    const theme = THEMES[at];
    document.documentElement.dataset.theme = theme.name;
    if (!button) return;
    button.replaceChildren(icon(theme.icon));
    button.setAttribute("aria-label", theme.label);
    button.title = theme.label;
  };
  button?.addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    keep("theme", THEMES[at].name);
    show();
  });
  show();
}

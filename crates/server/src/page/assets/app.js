// Starts the page: its views, keyboard shortcuts and the list of models.

import { getJson } from "./api.js";
import { Chat } from "./chat.js";
import { startComposer } from "./composer.js";
import { byId, el, icon } from "./dom.js";
import { ServerView } from "./server.js";
import { Settings } from "./settings.js";
import { keep, recall } from "./store.js";
import { startTheme } from "./theme.js";

const models = byId("model");
/** What each model reads, where the server knows it. */
let modalities = new Map();
let chat;

const settings = new Settings({
  clear: () => chat.clear(),
  exportAll: () => chat.export(),
  keyChanged: () => loadModels(),
});
const composer = startComposer(() => chat, refusal);
chat = new Chat({
  settings,
  model: () => models.value,
  ask: composer.put,
  running: composer.running,
});
const server = new ServerView(byId("server"));

startTheme(byId("theme"));
byId("open-settings").append(icon("settings"));
byId("open-settings").addEventListener("click", () => settings.toggle());
byId("set").addEventListener("click", () => settings.toggle(true));
byId("clear").append(icon("fresh"));
byId("clear").addEventListener("click", () => {
  chat.clear();
  composer.put("");
});

/** Why the chosen model takes no images, or no videos; undefined if it may. */
function refusal(kind) {
  const reads = modalities.get(models.value);
  if (!reads || reads.includes(kind)) return undefined;
  const only = reads.includes("image") ? "no videos" : "text only";
  return `${models.value} reads ${only}. Choose a model that reads ${kind}s.`;
}

async function loadModels() {
  try {
    const { data } = await getJson("/v1/models");
    modalities = new Map(data.map(({ id, input_modalities: reads }) => [id, reads]));
    const remembered = recall("model");
    models.replaceChildren(
      ...data.map(({ id }) => el("option", { value: id, selected: id === remembered }, id)),
    );
  } catch (error) {
    models.replaceChildren(el("option", { value: "" }, "no models"));
    models.title = error.message;
  }
  composer.modelChanged();
}

models.addEventListener("change", () => {
  keep("model", models.value);
  composer.modelChanged();
});
loadModels();

// Must not be an element's id: the browser would move the focus to that element.
const address = (view) => `#/${view}`;

const tabs = [byId("tab-chat"), byId("tab-server")];

function showView(name) {
  for (const tab of tabs) {
    const shown = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", String(shown));
    tab.tabIndex = shown ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !shown;
  }
  server.show(name === "server");
  if (name === "chat") chat.follow();
}

function goTo(view) {
  location.hash = address(view);
  showView(view);
}

for (const tab of tabs) {
  tab.addEventListener("click", () => {
    goTo(tab.getAttribute("aria-controls"));
  });
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = tabs[1 - tabs.indexOf(tab)];
    other.focus();
    other.click();
  });
}
const fromAddress = () => showView(location.hash === address("server") ? "server" : "chat");
window.addEventListener("hashchange", fromAddress);
fromAddress();

const writing = (target) => target.matches?.("input, textarea, select, [contenteditable]");

document.addEventListener("keydown", (event) => {
  if (event.isComposing || byId("key-dialog").open) return;
  const focusKey = event.key === "/" && !writing(event.target) && !event.ctrlKey && !event.metaKey;
  if (focusKey || (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey))) {
    event.preventDefault();
    goTo("chat");
    composer.focus();
  } else if (event.key === "Escape") {
    if (chat.busy) chat.stop();
    else if (!composer.leaveEditing()) settings.toggle(false);
  }
});

// Saves an incomplete reply when the page is closed.
window.addEventListener("pagehide", () => chat.save());

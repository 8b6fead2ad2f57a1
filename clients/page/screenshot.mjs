// Takes the picture that README.md shows: a conversation with the server at LOQUAT_URL.
// Usage: node clients/page/screenshot.mjs docs/page.png

import { answered, ask, closeBrowser, open, ready, withSettings } from "./browser.mjs";

const [path] = process.argv.slice(2);
if (!path) {
  console.error("usage: node screenshot.mjs FILE.png");
  process.exit(2);
}

const cleanups = [];
try {
  const page = await open(
    { after: (cleanup) => cleanups.push(cleanup) },
    { viewport: { width: 1000, height: 620 } },
  );
  await ready(page);
  await withSettings(page, { values: { temperature: 0 } });
  await ask(page, "Why is the sky blue?");
  await answered(page);
  await page.screenshot({ path });
} finally {
  for (const cleanup of cleanups) await cleanup();
  await closeBrowser();
}

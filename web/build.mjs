// Bundles src/ and the libraries that it uses into one script, which the wheel brings.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";

const source = createHash("sha256");
for (const name of ["package-lock.json", ...readdirSync("src").sort().map((file) => `src/${file}`)])
  source.update(readFileSync(name));

await build({
  entryPoints: ["src/main.ts"],
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "iife",
  target: "es2022",
  legalComments: "inline",
  banner: { js: `/* made from web/, source ${source.digest("hex")}; libraries: @dagrejs/dagre (MIT), d3 (ISC) */` },
  outfile: "../flowrl/report/html/page.js",
});

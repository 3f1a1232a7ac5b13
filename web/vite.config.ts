import { defineConfig } from "vite";

// Everything that the dashboard needs ends up in the package: relative addresses, no other host, no inline script.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/treering/server/static",
    emptyOutDir: true,
    target: "es2023",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { "^/(?!ui/|src/|node_modules/|@)": "http://127.0.0.1:8765" } },
});

// Unpacks the chromium of @sparticuz/chromium on first use and prints where it is and how it is started.
import chromium from "@sparticuz/chromium";

chromium.setGraphicsMode = false;
console.log(JSON.stringify({ path: await chromium.executablePath(), args: chromium.args }));

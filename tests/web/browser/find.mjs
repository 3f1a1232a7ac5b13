// Unpacks the chromium of @sparticuz/chromium (into TMPDIR, on first use) and prints where it is.
import chromium from "@sparticuz/chromium";

chromium.setGraphicsMode = false;
console.log(await chromium.executablePath());

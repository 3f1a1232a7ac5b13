import { render } from "preact";

import { App } from "./app";
import { follow } from "./base/live";
import "./styles/fonts.css";
import "./styles/palette.css";
import "./styles/frame.css";
import "./styles/lists.css";
import "./styles/run.css";
import "./styles/thread.css";
import "./styles/content.css";
import "./styles/rest.css";
import "./styles/debugger.css";

render(<App />, document.getElementById("app")!);
void follow();

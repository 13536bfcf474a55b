// The page's parts, put together.

import { setUpChat } from "./chat.js";
import { byId } from "./dom.js";
import { setUpPanel } from "./panel.js";
import { setUpSettings } from "./settings.js";
import { setUpTheme } from "./theme.js";

setUpTheme();
const panel = setUpPanel();
setUpSettings(panel.refresh);
setUpChat({ model: panel.model, onAnswered: panel.refresh });
byId("prompt").focus();

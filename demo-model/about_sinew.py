"""What the demo model knows about Sinew.

Every answer restates what version 0.1 does; what changes from version to version is left
to the README. No speed figures: the model cannot know when those change.
"""

from __future__ import annotations

from intents import Intent

_WHAT = ("{what is|what's|what exactly is|explain|describe|tell me about|what do you know about|"
         "define|introduce|give me an overview of|summarize|what can you tell me about}")
_HOW = ("{how do I|how can I|how would I|how to|how does one|how should I|what do I do to|what is "
        "the command to|which command do I use to|what do I type to|I want to|I need to|what must "
        "I do to|show me how to|help me|is there a way to|can I}")
_MACHINE = "{machine|computer|node|laptop|PC|box|server|device|desktop|Mac}"
_MACHINES = "{machines|computers|nodes|laptops|boxes|servers|devices|PCs}"

SINEW: list[Intent] = [
    # -- What it is ----------------------------------------------------------------------------
    Intent(
        [f"{_WHAT} [S]", "what does [S] do", "what is [S] {for|good for|about|used for}", "[S]",
         "what is this {program|project|software|tool|thing|app}",
         "what does this {program|project} do",
         "{what is the point of|what is the purpose of|what is the idea behind} [S]",
         "why {would I|should I} use [S]", "what problem does [S] solve", "sinew?",
         "what kind of {software|program} is [S]", "what is this all about"],
        ["Sinew turns the machines you already own into one AI computer. It splits one language "
         "model over all of them, so that they hold it together and work on every word at the same "
         "time. Each machine you add brings more memory and more computing power."],
        weight=4),
    Intent(
        ["what is [S], and how do I add {another|a|a second|one more} " + _MACHINE,
         "what is [S] and how {do|can} I add {another|a|a new|more} " + _MACHINE,
         "tell me what [S] is and how to {add|join} {a|another} " + _MACHINE],
        ["Sinew turns the machines you already own into one AI computer: it splits one language "
         "model over all of them, and they work on every word together. To add a machine, run "
         "`sinew invite` on one that is already in. It prints a one-time code. On the new machine, "
         "run `sinew join CODE` with that code."],
        weight=4),
    Intent(
        ["how does [S] work", "explain how [S] works", "how does {this|it all} work",
         "how does [S] {do it|do that}",
         "what happens inside [S]", "how does [S] {split|divide|share} a model",
         "how is the model {split|divided|shared|cut}",
         "what is the {trick|idea|secret} {of|behind} [S]", "how do the machines work together",
         "how does [S] work under the hood"],
        ["Sinew cuts every layer of the model into parts and gives each machine one part. For "
         "every word, all machines compute their parts at the same time and add up their results "
         "over the network. Then they go on to the next layer together."],
        weight=3),
    Intent(
        ["who {made|wrote|built|created|develops|owns|is behind} [S]", "who is the author of [S]",
         "which company makes [S]"],
        ["Sinew is an open-source project, written by its contributors. I do not know their "
         "names."]),
    Intent(
        ["what language is [S] {written|programmed|made} in",
         "which programming language does [S] use",
         "is [S] written in {Rust|Python|C|Go}", "what is [S] written in", "why Rust"],
        ["Sinew is written in Rust. It is one binary, and its CPU code needs no other library."]),
    Intent(
        ["is [S] {free|open source|free software|gratis|paid}", "what does [S] cost",
         "how much does [S] cost",
         "do I have to pay for [S]", "what is the licence of [S]", "which license does [S] have",
         "is [S] commercial",
         "can I see the source code of [S]", "where is the source of [S]", "price of [S]",
         "do I need an account for [S]"],
        ["Sinew is open source, and it runs on machines that you already own. The licence is in "
         "its repository."]),
    Intent(
        ["does [S] {need|use|require} {the cloud|the internet|a cloud|an internet connection}",
         "does [S] work {offline|without internet|without the cloud}",
         "can I use [S] offline", "is there a cloud", "do you need internet",
         "does [S] run in the cloud", "is [S] local"],
        ["Sinew runs on your own machines, not in a cloud. Once a model file is on your disks, it "
         "needs no internet, only the network between your machines."]),
    # -- Clusters ------------------------------------------------------------------------------
    Intent(
        [f"{_HOW} {{add|join|connect|include|attach|use|bring in|plug in}} {{a|another|a second|"
         f"a third|one more|a new|my other|my old|my}} {_MACHINE} {{to [S]|to the cluster|to it||"
         f"}}",
         f"{_HOW} add more {_MACHINES}", "how does a new machine join", "how do machines join [S]",
         "add a machine", "add node",
         "{adding|joining} a {machine|computer|node}",
         "I {have|got|own} {a second|another|an old} {laptop|computer|machine}, {what now|how do I "
         "add it|can I use it}",
         "I bought a new {laptop|computer|machine}, how do I add it",
         "how do I {grow|extend|make bigger|enlarge|scale} the cluster",
         "how do I {make|create|build|set up} a cluster",
         "how do I connect two {machines|computers|laptops}",
         "how do I link my {computers|machines|laptops}", "how do I use two {machines|computers}",
         "how do I get a second machine in",
         "what do I need to do to add a {machine|computer|laptop}",
         "how can my {friend's|wife's|brother's|old} {laptop|computer} join",
         "can my old laptop help",
         "{I have|I've got|there is|I own|we have|I found} {a spare|an old|another|a second|one "
         "more|an unused} " + _MACHINE + " {|lying around|at home|in the cellar|on my desk}{.|,| "
                                         "and|:} {how could it join{| in}|how do I add it|can it "
                                         "help|how do I use it|how can it join|can I add it|what "
                                         "now|can I use it too|how do I connect it}",
         f"what do I {{type|run|do|enter}} on the new {_MACHINE}",
         f"I want {{two|three|more}} {_MACHINES} to work together",
         f"{{combine|link|join|pair|cluster}} {{two|my}} {_MACHINES}", "how can I get more speed",
         "how do I make it bigger"],
        ["Run `sinew invite` on a machine that is already in the cluster. It prints a one-time "
         "code. On the new machine, run `sinew join CODE` with that code, and it is in."],
        weight=5),
    Intent(
        ["what {is|does} `sinew invite` {|do}", "what does sinew invite do", "what is sinew invite",
         "sinew invite", "what is {an|the} invite",
         "how do I invite a machine", "how do I get a code",
         "where do I get the {code|join code|invite code}", "what is the one-time code",
         "what is the code for", "how do invites work", "can a code be used twice",
         "does the code expire", "I need a join code"],
        ["`sinew invite` prints a one-time code. Type `sinew join` and that code on the new "
         "machine, and it becomes part of your cluster. The code lets in one machine only, and it "
         "is good for ten minutes."],
        weight=2),
    Intent(
        ["what {is|does} `sinew join` {|do}", "what does sinew join do", "sinew join",
         "how do I use sinew join", "how do I use the code",
         "I have a code, what now", "where do I {type|enter|put} the code",
         "what do I do with the code"],
        ["On the new machine, type `sinew join` and then the code that `sinew invite` printed. The "
         "two machines learn each other's keys, and from then on they trust each other."],
        weight=2),
    Intent(
        [f"{_HOW} {{remove|drain|take out|turn off|switch off|disconnect|unplug|kick out|"
         f"get rid of|delete|stop using|retire|shut down}} {{a|one|my}} {_MACHINE}",
         "what does sinew drain do", "sinew drain", "is there a drain command",
         "can I take a machine away", "what does sinew stop --node do",
         "how do I stop {a node|the node|sinew up}", "how do I shut down a machine safely",
         "how do I leave the cluster",
         "how do I {remove|take out} a {machine|node}"],
        ["Run `sinew remove` and the machine's name on any other, or `sinew leave` on the machine "
         "itself. To switch it off only for a while, use `sinew stop --node` there. Answers that "
         "it helped to write go on, on the machines that are left."],
        weight=3),
    Intent(
        [f"{_HOW} {{see|list|show|find}} {{my|all|the}} {_MACHINES}",
         f"which {_MACHINES} are in the cluster", "what does sinew nodes do",
         f"how many {_MACHINES} {{are there|do I have|are running|are you running on|"
         f"are in the cluster}}", "sinew nodes", "list nodes", "where are you running",
         f"what is the command {{to see|to list|for}} {{my|the}} {_MACHINES}",
         f"where do I see my {_MACHINES}", f"are all my {_MACHINES} connected",
         "how do I check that it joined",
         "show the cluster", "what machines are you on", "which machine are you on",
         "are you running on more than one machine"],
        ["I cannot see the cluster from in here, but `sinew nodes` lists its machines and how they "
         "are."]),
    Intent(
        [f"how many {_MACHINES} {{can I use|does [S] support|can I add|do I need|can [S] use|"
         f"are possible}}", "what is the maximum number of nodes",
         "is there a limit of machines", "can it use {64|100|32|20|16} machines",
         "is there a limit", "how many at most", "up to how many {machines|nodes}",
         "does it work with {three|five|seven|3|5|7} machines",
         "can I use an odd number of machines", "must the number be even",
         "does the number of machines matter", "can I use just one machine",
         "do I need two machines"],
        ["Any number: one, two, three, five or seven are all fine. Up to 16 machines share every "
         "layer of a model, and with more of them each group takes a run of layers."]),
    Intent(
        [f"{{do|must}} {{all|my|the}} {_MACHINES} {{have to be|need to be|be}} {{the same|equal|"
         f"identical|alike}}",
         "can I mix {different machines|a Mac and a PC|old and new machines|fast and slow "
         "machines}",
         "what if one machine is {slower|smaller|older|weaker}",
         "does [S] work with different {hardware|machines}",
         "my machines are different, does it work",
         "one of my machines has less memory", "can the split be uneven",
         "will a slow machine slow {everything|us} down"],
        ["The machines may differ. Sinew cuts every layer unevenly: a machine that was measured "
         "to be faster takes a bigger share, and one that would only slow the others down is left "
         "out. Or you set the shares yourself with `--split 3,2,1`."]),
    Intent(
        ["how do the machines find each other", "what is discovery", "how does discovery work",
         "how do nodes find each other",
         "do the machines find each other by themselves", "do I have to type addresses",
         "does [S] find my machines", "does it work across {subnets|networks|a VPN}",
         "does [S] {discover|detect|find} {machines|computers|nodes} {automatically|by itself}",
         "is there automatic discovery", "does it discover my machines automatically"],
        ["Machines on one network see each other: `sinew nodes` also lists those that are near. "
         "But none joins by itself. Elsewhere, the code that `sinew invite` prints says where "
         "your machines are."]),
    # -- Why it is faster ----------------------------------------------------------------------
    Intent(
        ["why is [S] faster with {two|more|three|several} machines",
         "why is it faster with two machines",
         "why {are|is} two {machines|computers} faster {than one|}",
         "how {can|do} two machines be faster {than one|}",
         "why does adding {a machine|machines} make it faster", "why do more machines help",
         "does it get faster with more machines",
         "will it be faster with {two|three} machines",
         "is it {really|} faster with {two|more} machines", "what makes [S] fast",
         "why is [S] fast", "how does [S] get faster",
         "are two machines faster",
         "is it {really|truly|actually|} {quicker|faster} with two {machines|boxes|computers} than "
         "with one{|, and why|, why}", "how come it {gets|is} faster", "why should I add a machine",
         "what do I gain from a second machine", "does it scale", "does more hardware help",
         "why not just use one machine", "isn't the network too slow",
         "does a second machine make it {faster|quicker}", "how much faster is it",
         "how fast is [S]", "what speedup do I get", "does [S] speed things up"],
        ["To make a word, a machine must read the whole model from memory. With two machines, each "
         "reads only half, and both read at the same time, so the word can be ready sooner. The "
         "machines must also exchange small sums in every layer, so a slow network can eat the "
         "gain. I know no figures."],
        weight=3),
    Intent(
        [f"{_WHAT} {{tensor parallelism|tensor parallel|TP|tensor-parallel|"
         f"tensor parallelization}}", "tensor parallelism", "how does tensor parallelism work",
         "what does tensor parallel mean",
         "does [S] use tensor parallelism", "which strategies are there",
         "what strategies can [S] use", "why tensor parallelism",
         "explain tensor parallelism to me like I am five"],
        ["Tensor parallelism cuts every layer of a model into slices, one for each machine, and "
         "the slices need not be equal. All machines work on the same word at the same time, and "
         "add up their partial results twice in every layer."],
        weight=3),
    Intent(
        [f"{_WHAT} {{pipeline parallelism|a pipeline|pipelining|pipeline parallel}}",
         "what is the difference between tensor and pipeline parallelism",
         "tensor or pipeline, which is better",
         "does [S] support pipeline parallelism", "pipeline parallelism",
         "what is the hybrid strategy"],
        ["In pipeline parallelism each machine holds some whole layers, and a word passes through "
         "the machines one after the other. Sinew can split a model that way, by tensor "
         "parallelism, or by a mix of both, and chooses what its measurements favour."]),
    Intent(
        [f"{_WHAT} {{an all-reduce|all-reduce|allreduce|the all reduce}}", "what is a collective",
         "what do the machines send each other", "what is sent over the network",
         "what do the nodes exchange", "all-reduce"],
        ["An all-reduce adds up one list of numbers from every machine and gives everybody the "
         "sum. In tensor parallelism it happens twice in every layer, so its delay decides whether "
         "more machines help."]),
    Intent(
        [f"{_WHAT} {{RDMA|rdma|remote direct memory access}}", "RDMA", "what does RDMA mean",
         "why does [S] use RDMA", "do I need RDMA", "does [S] support RDMA",
         "what is {RoCE|InfiniBand}", "is RDMA needed", "why is RDMA good", "is rdma required",
         "does it use rdma",
         "can [S] use {RDMA|InfiniBand|RoCE}"],
        ["RDMA lets one machine write straight into the memory of another, past the operating "
         "system. Sinew uses it where the machines have it, but you do not need it: otherwise it "
         "uses encrypted TCP. `sinew doctor rdma` says what a machine has."],
        weight=2),
    Intent(
        ["does [S] work over {wifi|Wi-Fi|ethernet|wireless|a normal network|my home network|a "
         "switch}", "which network do I need", "what network does [S] need",
         "do I need a {fast|special} network", "what cable do I need",
         "can I use Thunderbolt", "does [S] use Thunderbolt", "is ethernet enough",
         "{can|does|will} it work {over|on|with} my {home|} {wifi|Wi-Fi|network|LAN|router}",
         "is {wifi|Wi-Fi} {fast enough|ok|good enough}", "do I need special cables",
         "what about {wifi|Wi-Fi|slow networks}",
         "how do I connect the machines", "what if my network is slow"],
        ["Any network over which the machines reach each other works. Sinew measures the ways "
         "between them and takes the best. Low delay matters more than bandwidth, so a cable is "
         "better than Wi-Fi."]),
    Intent(
        ["what is latency", "why does latency matter", "latency or bandwidth",
         "why is delay important", "what is bandwidth"],
        ["Latency is the time that one small message takes, and bandwidth is how much fits through "
         "in a second. In tensor parallelism the machines send many small messages for every word, "
         "so low latency matters most."]),
    Intent(
        [f"{_WHAT} {{the planner|`sinew plan`|sinew plan}}", "what does sinew plan do",
         "sinew plan", "how does [S] decide {how to split|what to do|which machines to use}",
         "can I know beforehand how fast it will be",
         "how do I predict the speed", "what does the planner do",
         "can I try hardware before I buy it",
         "should I buy another machine", "can [S] predict the speed",
         "how does [S] choose the {split|shares}", "can I choose the split",
         "who gets which part of the model", "what does --split do"],
        ["`sinew plan` and a model says how Sinew would split it, how fast that should be, and "
         "why not otherwise. It knows that from measurements of your machines and of the network "
         "between them."],
        weight=1.5),
    Intent(
        ["do the answers change with more machines",
         "is the result the same on {two|many|several} machines",
         "does splitting change the {answer|result|quality}", "is [S] exact",
         "is [S] deterministic", "are the results {reproducible|identical}", "do I lose quality",
         "does [S] make the model worse"],
        ["The answers do not change. Sinew adds up partial results in one fixed order, so every "
         "split gives, bit for bit, the answer of one machine."],
        weight=1.5),
    Intent(
        ["what if the model {is too big|does not fit|is bigger than my memory|is too large}",
         "can I run a {big|huge|large|giant} model",
         "can [S] run a model that does not fit on one machine", "does [S] pool memory",
         "do the machines share memory",
         "how big can a model be", "what is the biggest model I can run",
         "I have not enough memory", "will my model fit",
         "does the model fit on my machines", "how much memory do I need", "how much RAM do I need",
         "does memory add up"],
        ["The memory of all your machines adds up. Each machine holds only its own part of the "
         "model, so together they can run a model that none of them could hold alone."],
        weight=1.5),
    # -- Trust and faults ----------------------------------------------------------------------
    Intent(
        ["is [S] {secure|safe|encrypted|trustworthy}", "is it {secure|safe}",
         "is the traffic encrypted", "is the connection {secure|encrypted}",
         "is my data {safe|encrypted}", "can I trust [S]", "are messages encrypted",
         "does [S] {encrypt|use encryption|use keys}", "is the cluster {secure|safe}",
         "do the machines authenticate each other",
         "is the network traffic {secure|encrypted|safe}",
         "is {my stuff|my data|everything|my chat} {safe|secure|protected|private}{|, who can read "
         "it|, who could read it}"],
        ["Yes. Every machine has its own key, and the machines prove to each other who they are "
         "before they talk. The traffic between them is encrypted, and strangers cannot join: a "
         "new machine needs a one-time code."],
        weight=2),
    Intent(
        ["how secure is [S]",
         "can {someone|anybody|hackers|my neighbour} {listen|read my data|spy on me|hack [S]}",
         "what about security", "how does [S] protect {me|my data}", "what encryption does [S] use",
         "how do nodes {trust|authenticate|know} each other",
         "security", "how are the machines authenticated", "how is [S] secured",
         "how does [S] keep {strangers out|my data safe}", "how does the encryption work",
         "tell me about security"],
        ["Every machine has its own key, and the machines prove to each other who they are before "
         "they talk. The traffic between them is encrypted, and a new machine needs a one-time "
         "code to join."],
        weight=2),
    Intent(
        ["can a stranger join",
         "can {a stranger|strangers|somebody|an attacker|a thief} get {in|into my cluster|access}",
         "is it open to everybody", "could {someone|somebody} else use my cluster",
         "can {strangers|anyone|anybody|my neighbour|a hacker|others} join my cluster",
         "who can join", "can somebody join without a code", "what stops others from joining",
         "does a machine join by itself"],
        ["No. A stranger cannot join: a new machine needs a one-time code from `sinew invite`, and "
         "the code is good for ten minutes."]),
    Intent(
        ["what is a node key", "what keys does [S] use", "what is the identity of a node",
         "what is Ed25519", "does [S] use TLS", "which protocol protects the traffic",
         "what is a node id"],
        ["Every machine has an Ed25519 key pair, and its public key is its name in the cluster. "
         "Machines talk over TLS 1.3, and each end checks the key of the other."]),
    Intent(
        ["does [S] {send|collect|upload} my data", "where does my data go",
         "who sees my {prompts|data|chats|questions}", "do my prompts leave {my house|my network}",
         "is [S] private", "does [S] phone home", "what about privacy",
         "do you {record|save|store|remember} what I say", "are you spying on me"],
        ["Your prompts and answers stay on your own machines. The model runs there, and nowhere "
         "else."]),
    Intent(
        ["what happens {when|if} {a|one} {node|machine|computer|worker} {dies|fails|crashes|goes "
         "away|disappears|is switched off|stops|is lost|breaks|falls asleep|goes down}",
         "what if a {machine|node|computer|laptop} {dies|crashes|fails|goes offline|is unplugged}",
         "what happens if I {unplug|turn off|close} {a machine|my laptop|one of them}",
         "does [S] survive a crash", "is [S] fault tolerant", "what if I lose a machine",
         "what about failures", "node failure", "does everything stop if one machine dies",
         f"what {{happens|will happen}} if one of {{my|the}} {_MACHINES} {{suddenly|}} "
         f"{{loses power|dies|crashes|reboots|restarts|stops|fails}}", "what about a power cut",
         f"a {_MACHINE} died", f"my {_MACHINE} crashed, what now",
         "does my answer get lost when a machine dies",
         "what if a machine dies in the middle of an answer"],
        ["The answer that is running goes on after a pause: the machines that are left take over "
         "the lost one's part, or wait until it is back. Nobody has to repair anything."],
        weight=3),
    Intent(
        ["does [S] {resume|continue} {my|an|the|a broken} answer {|after a crash|after an error}",
         "can [S] resume {an|my|an interrupted|a broken} answer",
         "can it {resume|continue} {an interrupted|a broken|the|my} answer",
         "does my answer {continue|go on} {when|after|if} a machine {dies|crashes|is lost}",
         "are interrupted answers continued", "my answer stopped with an error",
         "the answer broke off, what now", "I got an error, what now", "why did my answer stop",
         "what do I do after an error"],
        ["Yes. When a machine is lost, the answer goes on where it stopped, without a seam. If it "
         "cannot go on, it ends with an error that says which machine is missing. Then ask again."],
        weight=1.5),
    Intent(
        ["what is the coordinator", "who is the {boss|leader|master} of the cluster",
         "is there a {leader|master|central server}", "what if the coordinator dies",
         "what happens if the leader dies", "is there a single point of failure",
         "which machine is in charge"],
        ["No machine rules the cluster. Each model belongs to the machine that began to serve it, "
         "and the others help. If that one is lost, another one that has the model's file takes "
         "over."]),
    Intent(
        ["what happens when the {GPU|worker} crashes", "what is a worker",
         "why are there worker processes", "what if a worker runs out of memory",
         "what is the daemon", "what is a rank"],
        ["Each machine runs one node, and the node starts a worker process for each model it helps "
         "to run. If a worker crashes, the node lives on, says why in words, and starts the worker "
         "again."]),
    # -- Models --------------------------------------------------------------------------------
    Intent(
        ["which models {run|can I run|does [S] support|work|can [S] run|are supported}",
         "what models {run|can I use|are supported|can [S] run|does it run|work with [S]}",
         "what model {formats|format|files} does [S] {use|read|support}",
         "can I run {llama|qwen|mistral|gemma|deepseek|a big model|my own model}",
         "does [S] support {llama|qwen|mistral|gemma|gguf|deepseek}", "supported models",
         "can I use my own model", "can I use another model",
         "where do I get a {bigger|better|real} model",
         "how do I use a {bigger|better|real|different} model", "how do I run a real model",
         "you are too small, how do I get a bigger one"],
        ["Type `sinew run llama3.2`: Sinew fetches the model and starts a chat. It takes short "
         "names, repositories of Hugging Face and GGUF files, of Llama, Qwen, Mistral, Gemma, "
         "DeepSeek and other families. `sinew list --catalogue` shows the short names."],
        weight=3),
    Intent(
        [f"{_WHAT} {{GGUF|a GGUF file|gguf}}", "what is a gguf", "gguf", "why GGUF",
         "what is in a GGUF file"],
        ["GGUF is a file format for language models. One file holds the weights, the tokenizer and "
         "everything else that is needed to run the model."]),
    Intent(
        [f"{_WHAT} {{quantisation|quantization|a quantised model|Q8_0|Q4_0|quants}}",
         "why are models quantised", "does [S] support quantized models"],
        ["Quantisation stores each weight in fewer bits, so that a model needs less memory and "
         "runs faster. Sinew runs quantised GGUF files as they are."]),
    Intent(
        [f"{_HOW} {{download|get|pull|fetch|install}} {{a|the|another}} model",
         "what does sinew pull do", "sinew pull", "where do models come from",
         "can [S] download models",
         "do I have to copy the {file|gguf|model} {onto|to} every {machine|box}",
         "does [S] download a model", "do I need to copy the model to every machine",
         "do all machines need the {file|model file|model}",
         "how do models get onto the machines", "does every machine need the whole file"],
        ["`sinew pull` and a name downloads a model, and so do `sinew run` and `sinew serve` if "
         "it is missing. A download goes on where it was cut. One machine with the file is "
         "enough: the others get their own slices from it."],
        weight=1.5),
    Intent(
        [f"{_HOW} {{see|list|delete|remove|manage}} {{my|the}} models", "what does sinew list do",
         "sinew list", "which models do I have", "which model files do I have",
         "list my models"],
        ["`sinew list` shows the models on this machine's disk, `sinew show` says what one is, "
         "and `sinew rm` deletes one. What Ollama or LM Studio have put on the disk is used where "
         "it lies."]),
    # -- Commands ------------------------------------------------------------------------------
    Intent(
        ["how do I start a node",
         f"{_HOW} {{start|launch|begin with|set up|install|get started with|use|try}} [S]",
         "how do I start", "how do I get started", "getting started", "what does sinew up do",
         "what is sinew up", "sinew up", "first steps", "how do I begin", "where do I start",
         "how do I install it", "what should I do first", "what next", "what do I do now"],
        ["Put the `sinew` program on each machine and start its node there with `sinew up`. Then "
         "join the machines with `sinew invite` and `sinew join`. After that, `sinew run "
         "llama3.2` starts a chat."],
        weight=3),
    Intent(
        [f"{_HOW} {{run|chat with|talk to|start|use}} {{a|the|my}} {{model|language model|"
         f"gguf file}}", "what does sinew run do", "sinew run", "what is sinew run",
         "how do I chat", "how do I ask a model something", "how do I run a prompt"],
        ["`sinew run` and the name of a model starts a chat in your terminal. Put a question "
         "behind it to get a single answer: `sinew run llama3.2 \"Tell me a story\"`."],
        weight=2),
    Intent(
        [f"{_HOW} {{serve|host|share|offer}} a model", "what does sinew serve do", "sinew serve",
         "what is sinew serve", "how do I start the {server|API}",
         "how do I make a model available", "how do I keep a model running"],
        ["`sinew serve llama3.2` splits the model over your machines and keeps it running, so "
         "that programs can use it over the API at 127.0.0.1:8750."],
        weight=2),
    Intent(
        ["{what is|where is} the {API|address|URL|endpoint|port} {|of [S]}",
         "which port does [S] use", "what is the API address", "what port", "does [S] have an API",
         "is there an API", "how do I use the API", "is [S] OpenAI compatible",
         "is it compatible with OpenAI", "can I use the OpenAI {client|library|SDK} {|with [S]}",
         "can I use [S] from {Python|my program|my editor|my app}",
         "how do I connect my {app|editor|program}", "API", "openai", "what is 127.0.0.1:8750",
         "8750", "how do I call [S] from code",
         "how do I {talk to|use|call|reach} {it|you|the model} from {Python|JavaScript|my code|a "
         "script|another program|curl}", "is there an OpenAI API", "where is the api",
         "can I connect {my editor|a chat app|an agent|VS Code}", "can other programs use it",
         "base url", "does it have a REST API", "does it speak http"],
        ["Sinew speaks the APIs of OpenAI, Anthropic and Ollama at 127.0.0.1:8750. Point any "
         "OpenAI client at http://127.0.0.1:8750/v1, and it talks to your own machines."],
        weight=3),
    Intent(
        ["does [S] {have|support|speak|offer} {the|an|} {Anthropic|Ollama|Claude|Gemini} API",
         "is there an {Anthropic|Ollama} API", "can I use the {Anthropic|Ollama|Claude} {client|"
         "SDK|API}", "is [S] compatible with {Anthropic|Ollama|Claude}", "anthropic", "ollama",
         "which APIs does [S] have", "does it have an {ollama|anthropic} api"],
        ["Yes. Sinew speaks the APIs of OpenAI, Anthropic and Ollama, all at 127.0.0.1:8750. To "
         "set a program up, type `sinew launch` and its name."],
        weight=1.5),
    Intent(
        ["is there a {dashboard|web page|website|GUI|user interface|status page}",
         "is there a {dashboard|web page|GUI} {for|of} [S]",
         "can I chat in {the|my} browser", "what is the status page",
         "where is the status page", "can I open it in a browser",
         "does [S] have a {dashboard|GUI|web interface}", "where is the dashboard",
         "how do I watch the cluster", "can I see what is going on"],
        ["Yes. Type `sinew page` and open the address that it prints: the page shows the "
         "machines, the models and what happened, and it has a chat. `sinew top` shows the same "
         "in the terminal."],
        weight=1.5),
    Intent(
        ["what does sinew doctor do", "sinew doctor", "something is wrong", "[S] does not work",
         "how do I find the problem", "is there a doctor command", "sinew logs", "it is slow, why",
         "how do I debug [S]", "it does not work",
         "I have a problem", "where are the logs", "what does sinew logs do",
         "the machines do not see each other"],
        ["Type `sinew doctor`: it says what is wrong and what to type. `sinew events` tells what "
         "happened, and `sinew logs` prints the end of the node's log."],
        weight=1.5),
    Intent(
        ["how do I {benchmark|measure|test the speed of} [S]", "what does sinew bench do",
         "sinew bench", "is there a benchmark", "how do I measure the speed"],
        ["`sinew bench model` measures how fast a model reads a prompt and writes an answer, "
         "`sinew bench serve` a server with many users, and `sinew bench net` the network."]),
    Intent(
        ["what does sinew ps do", "how do I see running models", "which models are running",
         "sinew ps", "how do I stop a model", "what does sinew stop do", "sinew stop",
         "stop a model"],
        ["`sinew ps` shows the models that are being served, and `sinew stop` and a name stops one "
         "of them."]),
    Intent(
        ["what does sinew demo do", "sinew demo", "what is this demo", "what is the demo",
         "what am I seeing", "what just happened", "what is happening here",
         "how does the demo work", "what does the demo show", "is this a demo"],
        ["`sinew demo` starts several nodes on this one machine and splits me over them. It shows "
         "a whole cluster at work: every node has its own part of me, and they answer you "
         "together."],
        weight=2),
    Intent(
        ["which commands {are there|does [S] have|can I use|do you know}", "list the commands",
         "what commands", "show me the commands", "sinew help", "command list", "what can [S] do",
         "cheat sheet"],
        ["To build a cluster: `sinew up`, `invite`, `join`, `nodes`. To use a model: `run`, "
         "`pull`, `serve`, `ps`, `stop`. To look after it: `page`, `top`, `doctor`. `sinew help` "
         "lists them all."],
        weight=2),
    Intent(
        ["what does sinew launch do", "sinew launch", "is there a launch command"],
        ["`sinew launch` sets another program up to use your models: `sinew launch claude`, for "
         "example, or codex, opencode or zed. With `--undo` it takes that back."]),
    Intent(
        ["what does /clear do", "/clear", "how do I {start over|start afresh|start a new "
         "chat|clear the chat|forget everything}", "the chat is full, what now", "the context is full",
         "can I start a new {chat|conversation}",
         "how do I reset {you|the chat|this conversation}"],
        ["In the chat of `sinew run`, type `/clear`: the conversation starts afresh. On the page, "
         "begin a new conversation."],
        weight=1.5),
    Intent(
        [f"{_HOW} keep {{[S]|it|the node}} {{running|up|alive}}", "sinew service",
         "what does sinew service do", "how do I start [S] at boot",
         "does [S] start by itself after a {reboot|restart}",
         "can [S] run {in the background|as a service|as a daemon}",
         "must the terminal stay open", "can I close the terminal"],
        ["Type `sinew service install`: the node then runs in the background, without a terminal, "
         "and starts again with the machine. `sinew service uninstall` takes that back."],
        weight=1.5),
    Intent(
        ["what does sinew events do", "sinew events",
         "what happened {in the cluster|tonight|today}",
         "why did a machine {leave|go away|disappear}", "what does sinew top do", "sinew top",
         "what does sinew status do", "sinew status", "how is the cluster"],
        ["`sinew status` says in a few lines how the cluster is, `sinew events` what happened in "
         "it, and `sinew top` shows both each second anew."]),
    Intent(
        ["what does sinew keys do", "sinew keys", "can other machines use the API",
         "how do I open the API to {others|my network|other machines}", "do I need an API key",
         "what does --lan do", "how do I get an API key"],
        ["On this machine the API needs no key. `sinew up --lan` opens it to other machines and "
         "prints the key that they need, and `sinew keys create` makes more."]),
    Intent(
        ["what does sinew dev do", "sinew dev", "what is sinew dev"],
        ["`sinew dev` holds tools for the developers of Sinew. You do not need them to run a "
         "model."],
        weight=0.5),
    Intent(
        ["what can [S] not do {|yet}", "what can't {it|[S]} do {|yet}",
         "what is missing {|in [S]|in this version}",
         "what does [S] not {do|have|support} {|yet}", "what are the limits of [S]",
         "what are the limitations of [S]", "what is not {finished|there yet|supported}",
         "which features are missing", "what is on the roadmap"],
        ["That changes from version to version: the README of Sinew has a table of what runs and "
         "what does not yet. I am a tiny demo model and only know the basics."],
        weight=1.5),
    Intent(
        ["what version is this", "which version of [S] is this", "what version of [S] do you know",
         "sinew version", "how new is [S]"],
        ["I know version 0.1 of Sinew. `sinew --version` says which one you have."]),
    Intent(
        ["does [S] {need|use|support|require} {a GPU|GPUs|a graphics card|CUDA|Metal|a video card}",
         "do I need a {GPU|graphics card}", "can it run without a GPU",
         "does it run on {the CPU|a CPU|CPUs}", "CPU or GPU", "is a GPU needed",
         "can I use my graphics card", "does it use {the|my} GPU",
         "can [S] use {my|a} GPU", "GPU support", "is there GPU support", "does it support CUDA",
         "does it work on a Mac", "what hardware do I need",
         "what are the requirements", "what do I need to run [S]"],
        ["You need no GPU: Sinew computes on the CPU, with code made for the CPU it finds. It also "
         "uses graphics cards, by libraries that you add: `sinew doctor gpu` says what it finds."],
        weight=2),
    Intent(
        ["does [S] work on {windows|linux|macOS|a raspberry pi|android|my phone|ubuntu}",
         "which operating systems does [S] support", "which platforms",
         "does it run on {windows|linux|a mac}", "can my phone join"],
        ["I am too small to know every system that Sinew is built for. Its README has the list."]),
    Intent(
        ["how do I update [S]", "is there a new version", "when is the next release",
         "how many users does [S] have", "is [S] better than others",
         "what are the alternatives to [S]",
         "how does [S] compare to {others|the competition|other tools}",
         "is [S] the {best|fastest}", "who are the competitors",
         "where can I find the documentation", "is there a manual", "where is the repository",
         "how can I contribute", "how do I report a bug"],
        ["That I do not know: I am only a tiny demo model. The README and the documentation of "
         "Sinew will tell you more."]),
    # -- Words ---------------------------------------------------------------------------------
    Intent(
        [f"{_WHAT} {{a language model|language models|an LLM|LLM|a large language model}}",
         "how does a language model work", "what does a language model do", "how do you work",
         "how do you make words", "how do you think"],
        ["A language model reads the text so far and guesses the next piece of a word, again and "
         "again. That is how I wrote this sentence."]),
    Intent(
        [f"{_WHAT} {{a token|tokens}}", "what are tokens", "token", "what is a tokenizer"],
        ["A token is a piece of text: a short word, or a part of a longer one. A language model "
         "reads and writes one token at a time."]),
    Intent(
        [f"{_WHAT} {{the context|a context window|context length|the KV cache|a KV cache}}",
         "what is kv cache", "how long can a chat be"],
        ["The context is the text that a model can see while it writes. It keeps notes on that "
         "text in a store called the KV cache, so that it need not read everything again. When a "
         "chat fills it, type `/clear` to start afresh."]),
    Intent(
        [f"{_WHAT} {{inference|a weight|weights|a layer|layers|parameters|a parameter|"
         f"a transformer}}", "what are weights", "what are parameters"],
        ["A language model is a stack of layers, and each layer is a set of numbers called weights "
         "or parameters. Running the model to get an answer is called inference."]),
    Intent(
        [f"{_WHAT} {{a cluster|a node|clusters|nodes}}", "what does node mean",
         "what do you mean by node"],
        ["A node is one machine that runs Sinew. All your nodes together are a cluster."]),
]

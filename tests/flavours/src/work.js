// Timers, promises, worker-pool crypto, a growing Map: the chain of digests is computed again at the end.
const crypto = require("crypto");
const fs = require("fs");
const { promisify } = require("util");
const pbkdf2 = promisify(crypto.pbkdf2);

const pid = process.pid;
const links = new Map();
let timers = 0;
setInterval(() => { timers++; }, 5).unref();

function link(previous, n) {
	return crypto.createHash("sha256").update(previous).update(String(n)).digest("hex");
}

async function main() {
	let digest = "start";
	let n = 0;
	while (!fs.existsSync("go")) {
		digest = link(digest, n);
		links.set(n, { digest, garbage: Buffer.alloc(1000, n & 255) });
		n++;
		if (n % 50 === 0) {
			await pbkdf2(String(n), "salt", 1000, 32, "sha512");
			console.log("tick", n);
			await new Promise((resolve) => setTimeout(resolve, 5));
		}
	}
	let again = "start";
	let ok = timers > 0 && process.pid === pid && links.size === n;
	for (let i = 0; i < n; i++) {
		again = link(again, i);
		const kept = links.get(i);
		ok = ok && kept.digest === again && kept.garbage.every((byte) => byte === (i & 255));
	}
	console.log(ok ? "result ok" : "result wrong");
	process.exit(ok ? 0 : 1);
}
main();

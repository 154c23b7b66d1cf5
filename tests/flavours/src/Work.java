import java.io.File;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/** A busy heap: threads make garbage and keep some, so that the collector is always at work; what was kept is checked. */
public class Work {
	static volatile boolean stop;
	static final AtomicLong steps = new AtomicLong();
	static final AtomicLong wrong = new AtomicLong();

	static void work(int id) {
		Map<Integer, long[]> kept = new HashMap<>();
		int n = 0;
		while (!stop) {
			long[] block = new long[500 + n % 1000];
			for (int i = 0; i < block.length; i++) {
				block[i] = (long) id * n + i;
			}
			kept.put(n % 4000, block);
			long[] old = kept.get((n * 7 + 3) % 4000);
			if (old != null) {
				long base = old[0];
				for (int i = 0; i < old.length; i++) {
					if (old[i] != base + i) {
						wrong.incrementAndGet();
					}
				}
			}
			n++;
			if (steps.incrementAndGet() % 20000 == 0) {
				System.out.println("tick " + steps.get());
			}
		}
	}

	public static void main(String[] args) throws Exception {
		long pid = ProcessHandle.current().pid();
		List<Thread> threads = new ArrayList<>();
		for (int id = 0; id < 4; id++) {
			final int own = id;
			Thread thread = new Thread(() -> work(own));
			thread.start();
			threads.add(thread);
		}
		while (!new File("go").exists()) {
			Thread.sleep(20);
		}
		stop = true;
		for (Thread thread : threads) {
			thread.join();
		}
		boolean ok = wrong.get() == 0 && ProcessHandle.current().pid() == pid;
		System.out.println(ok ? "result ok" : "result wrong: " + wrong.get());
		System.exit(ok ? 0 : 1);
	}
}

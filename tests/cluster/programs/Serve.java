import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.ServerSocket;
import java.net.Socket;

/** Answers each line, a number, with its square; a thread for each connection, and one that makes work for the collector. */
public class Serve {
    static void serve(Socket socket) {
        try (socket;
             var in = new BufferedReader(new InputStreamReader(socket.getInputStream()));
             var out = new PrintWriter(socket.getOutputStream(), true)) {
            for (String line; (line = in.readLine()) != null; ) {
                long number = Long.parseLong(line);
                out.println(number * number);
            }
        } catch (java.io.IOException problem) {
            problem.printStackTrace();
            System.exit(3);
        }
    }

    static void work() {
        byte[][] kept = new byte[1000][];
        try {
            for (int i = 0; ; i++) {
                kept[i % kept.length] = new byte[1000 + i % 5000];
                if (i % 1000 == 0)
                    Thread.sleep(1);
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    public static void main(String[] args) throws Exception {
        try (var listener = new ServerSocket(Integer.parseInt(args[0]))) {
            new Thread(Serve::work).start();
            System.out.println("ready");
            for (;;) {
                Socket socket = listener.accept();
                new Thread(() -> serve(socket)).start();
            }
        }
    }
}

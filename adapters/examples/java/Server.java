import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Answers the suite's requests, one JSON message a line: standard input to standard output. */
public final class Server {
    private static final int MAX_MESSAGE = 64 << 20;

    private Server() {}

    public static void main(String[] arguments) throws IOException {
        InputStream requests = new BufferedInputStream(System.in, 1 << 16);
        boolean ended = false;
        for (String line = line(requests); line != null && !ended; line = ended ? null : line(requests)) {
            Map<String, Object> reply = new LinkedHashMap<>();
            reply.put("jsonrpc", "2.0");
            reply.put("id", null);
            ended = answer(line, reply);
            System.out.write((Json.write(reply) + "\n").getBytes(StandardCharsets.UTF_8));
            System.out.flush();
        }
    }

    /** Fills in the reply; true when the suite asks to end. */
    private static boolean answer(String line, Map<String, Object> reply) {
        try {
            Map<String, Object> request = object(Json.read(line));
            if (!(request.get("id") instanceof Long id) || id < 0) {
                throw new Refusal(Refusal.NO_REQUEST, "id: expected a whole number of at least 0");
            }
            reply.put("id", id);
            if (!"2.0".equals(request.get("jsonrpc")) || !(request.get("method") instanceof String method)) {
                throw new Refusal(Refusal.NO_REQUEST, "expected jsonrpc \"2.0\" and the name of a method");
            }
            reply.put("result", result(method, object(request.getOrDefault("params", Map.of()))));
            return method.equals("shutdown");
        } catch (Refusal refusal) {
            reply.put("error", Map.of("code", refusal.code(), "message", refusal.getMessage()));
        } catch (RuntimeException error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            reply.put("error", Map.of("code", Refusal.RAISED, "message", error.toString(), "data", trace.toString()));
        }
        return false;
    }

    private static Object result(String method, Map<String, Object> params) {
        if (method.equals("initialize")) {
            if (!Long.valueOf(1).equals(params.get("protocol"))) {
                throw Refusal.of("protocol", "this is written for version 1");
            }
            return handshake();
        }
        if (method.equals("shutdown")) {
            return null;
        }
        if (!Components.METHODS.containsKey(method)) {
            throw new Refusal(Refusal.NO_SUCH_METHOD, "there is no " + method);
        }
        Map<String, Tensor> tensors = Components.METHODS.get(method).apply(new Arguments(params));
        Map<String, Object> results = new LinkedHashMap<>();
        tensors.forEach((name, tensor) -> results.put(name, tensor.json()));
        return results;
    }

    private static Map<String, Object> handshake() {
        List<String> methods = Components.METHODS.keySet().stream().sorted().toList();
        String suffix = "_gradient";
        Map<String, Object> hello = new LinkedHashMap<>();
        hello.put("protocol", 1L);
        hello.put("name", "MyAttention");
        hello.put("version", "1.0");
        hello.put("language", "Java " + Runtime.version().feature());
        hello.put("components", methods.stream().filter(name -> !name.endsWith(suffix)).toList());
        hello.put("gradients", methods.stream().filter(name -> name.endsWith(suffix))
                .map(name -> name.substring(0, name.length() - suffix.length())).toList());
        hello.put("conventions", Map.of("empty_row", "uniform"));
        hello.put("dtypes", List.of("float64", "float32"));
        return hello;
    }

    private static Map<String, Object> object(Object json) {
        if (!(json instanceof Map<?, ?> map)) {
            throw new Refusal(Refusal.NO_REQUEST, "expected an object");
        }
        Map<String, Object> named = new LinkedHashMap<>();
        map.forEach((key, value) -> named.put((String) key, value));
        return named;
    }

    /** The next line, or null at the end of the requests. */
    private static String line(InputStream requests) throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int next = requests.read(); next != '\n'; next = requests.read()) {
            if (next < 0 || line.size() == MAX_MESSAGE) {
                return null;
            }
            line.write(next);
        }
        return line.toString(StandardCharsets.UTF_8);
    }
}

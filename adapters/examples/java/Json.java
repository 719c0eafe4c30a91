import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Reads and writes JSON: objects are maps, arrays are lists, whole numbers are longs and others doubles.
 *
 * <p>The JDK has no JSON of its own. Whoever has a library uses that instead of this class.
 */
final class Json {
    private static final int MAX_DEPTH = 16;
    private static final Pattern NUMBER = Pattern.compile("-?(?:0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");

    private final String text;
    private final Matcher number;
    private int at;

    private Json(String text) {
        this.text = text;
        this.number = NUMBER.matcher(text);
    }

    /** The value that a text holds; a Refusal when it holds no value. */
    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.skipSpace();
        if (json.at < text.length()) {
            throw json.wrong("the end");
        }
        return value;
    }

    private Object value(int depth) {
        skipSpace();
        char next = at < text.length() ? text.charAt(at) : 0;
        if (depth == MAX_DEPTH && (next == '{' || next == '[')) {
            throw new Refusal(Refusal.NOT_JSON, "the message is nested more than " + MAX_DEPTH + " deep");
        }
        switch (next) {
            case '{':
                return object(depth);
            case '[':
                return array(depth);
            case '"':
                return string();
            case 't':
                return word("true", Boolean.TRUE);
            case 'f':
                return word("false", Boolean.FALSE);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> result = new LinkedHashMap<>();
        expect('{');
        if (accept('}')) {
            return result;
        }
        do {
            skipSpace();
            String key = string();
            expect(':');
            if (result.containsKey(key)) {
                throw new Refusal(Refusal.NOT_JSON, "the message has a key twice in one object: " + key);
            }
            result.put(key, value(depth + 1));
        } while (accept(','));
        expect('}');
        return result;
    }

    private List<Object> array(int depth) {
        List<Object> result = new ArrayList<>();
        expect('[');
        if (accept(']')) {
            return result;
        }
        do {
            result.add(value(depth + 1));
        } while (accept(','));
        expect(']');
        return result;
    }

    private String string() {
        if (at >= text.length() || text.charAt(at) != '"') {
            throw wrong("a string");
        }
        StringBuilder result = new StringBuilder();
        for (at++; at < text.length() && text.charAt(at) != '"'; at++) {
            char c = text.charAt(at);
            if (c < ' ') {
                throw wrong("no control character in a string");
            }
            result.append(c == '\\' ? escaped() : c);
        }
        if (at >= text.length()) {
            throw wrong("the end of a string");
        }
        at++;
        return result.toString();
    }

    /** The character that an escape means; leaves `at` on the last one of the escape. */
    private char escaped() {
        at++;
        int which = at < text.length() ? "\"\\/bfnrt".indexOf(text.charAt(at)) : -1;
        if (which >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(which);
        }
        boolean complete = at + 4 < text.length() && text.charAt(at) == 'u';
        if (!complete || !text.substring(at + 1, at + 5).matches("[0-9a-fA-F]{4}")) {
            throw wrong("an escape");
        }
        at += 4;
        return (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
    }

    private Number number() {
        if (!number.region(at, text.length()).lookingAt()) {
            throw wrong("a value");
        }
        at = number.end();
        boolean whole = number.group(1) == null && number.group(2) == null && number.group().length() < 19;
        // Not "whole ? long : double", which would make a double of either.
        if (whole) {
            return Long.valueOf(number.group());
        }
        return Double.valueOf(number.group());
    }

    private Object word(String word, Object meaning) {
        if (!text.startsWith(word, at)) {
            throw wrong("a value");
        }
        at += word.length();
        return meaning;
    }

    private void skipSpace() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private boolean accept(char wanted) {
        skipSpace();
        boolean there = at < text.length() && text.charAt(at) == wanted;
        at += there ? 1 : 0;
        return there;
    }

    private void expect(char wanted) {
        if (!accept(wanted)) {
            throw wrong("'" + wanted + "'");
        }
    }

    private Refusal wrong(String expected) {
        return new Refusal(Refusal.NOT_JSON, "the message is not JSON: expected " + expected + " at character " + at);
    }

    /** The text of a value. */
    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof String string) {
            writeString(string, out);
        } else if (value instanceof Double number && !Double.isFinite(number)) {
            writeString(number.toString(), out); // NaN, Infinity, -Infinity: JSON has no numbers for them
        } else if (value instanceof Map<?, ?> map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                out.append(separator);
                writeString((String) entry.getKey(), out);
                out.append(':');
                write(entry.getValue(), out);
                separator = ",";
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            String separator = "[";
            for (Object element : list) {
                out.append(separator);
                write(element, out);
                separator = ",";
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else {
            out.append(value);
        }
    }

    private static void writeString(String string, StringBuilder out) {
        out.append('"');
        for (char c : string.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}

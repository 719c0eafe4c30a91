/** An answer that is an error: its code is JSON-RPC's or the protocol's. */
final class Refusal extends RuntimeException {
    static final int NOT_JSON = -32700;
    static final int NO_REQUEST = -32600;
    static final int NO_SUCH_METHOD = -32601;
    static final int BAD_ARGUMENT = -32602;
    static final int RAISED = -32000;
    static final int NOT_IMPLEMENTED = -32001;

    private static final long serialVersionUID = 1L;

    private final int code;

    Refusal(int code, String message) {
        super(message);
        this.code = code;
    }

    int code() {
        return code;
    }

    /** The argument does not fit; the message begins with its name. */
    static Refusal of(String argument, String why) {
        return new Refusal(BAD_ARGUMENT, argument + ": " + why);
    }
}

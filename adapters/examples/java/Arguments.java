import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The arguments of one call: each is taken once by its name and checked, and no argument may be left over. */
final class Arguments {
    private final Map<String, Object> given;
    private final Map<String, Object> params = new HashMap<>();
    private final Map<String, String> sizes = new HashMap<>();
    private final Map<String, String> seenIn = new HashMap<>();
    private String dtype;

    Arguments(Map<String, Object> given) {
        this.given = new HashMap<>(given);
        Object parameters = this.given.remove("params");
        if (parameters != null && !(parameters instanceof Map)) {
            throw Refusal.of("params", "expected an object of arrays by name");
        }
        if (parameters instanceof Map<?, ?> named) {
            named.forEach((name, value) -> params.put((String) name, value));
        }
    }

    /** The dtype of the floats, which all have the same. */
    String dtype() {
        return dtype;
    }

    /** An input of floats with these axes; "..." stands for any number of leading ones. */
    Tensor input(String name, String axes) {
        return floats(name, axes, given);
    }

    /** A parameter with these axes. */
    Tensor param(String name, String axes) {
        return floats(name, axes, params);
    }

    /** A parameter with these axes, or null. */
    Tensor optionalParam(String name, String axes) {
        return params.containsKey(name) ? param(name, axes) : null;
    }

    /** The mask, spread over scores of this shape, or null when there is no mask. */
    Tensor mask(int... shape) {
        if (!given.containsKey("mask")) {
            return null;
        }
        Tensor mask = Tensor.read("mask", given.remove("mask"));
        if (!mask.dtype().equals("bool")) {
            throw Refusal.of("mask", "dtype is " + mask.dtype() + ", but a mask is bool: true = may attend");
        }
        int added = shape.length - mask.shape().length;
        boolean fits = added >= 0;
        int[] steps = new int[shape.length]; // how far an axis moves in the mask: 0 where it is repeated
        for (int axis = shape.length - 1, step = 1; fits && axis >= added; axis--) {
            int size = mask.shape()[axis - added];
            fits = size == 1 || size == shape[axis];
            steps[axis] = size == 1 ? 0 : step;
            step *= size;
        }
        if (!fits) {
            throw Refusal.of("mask", "shape " + Arrays.toString(mask.shape())
                    + " does not broadcast to that of the scores, " + Arrays.toString(shape));
        }
        double[] data = new double[Arrays.stream(shape).reduce(1, Math::multiplyExact)];
        for (int i = 0; i < data.length; i++) {
            int from = 0;
            for (int axis = shape.length - 1, rest = i; axis >= 0; rest /= shape[axis], axis--) {
                from += rest % shape[axis] * steps[axis];
            }
            data[i] = mask.data()[from];
        }
        return new Tensor("bool", shape, data);
    }

    /** An attribute that is true or false. */
    boolean flag(String name) {
        if (take(name, given) instanceof Boolean flag) {
            return flag;
        }
        throw Refusal.of(name, "expected true or false");
    }

    /** An attribute that is a whole number of at least 1. */
    int count(String name) {
        if (take(name, given) instanceof Long number && number >= 1 && number <= Integer.MAX_VALUE) {
            return number.intValue();
        }
        throw Refusal.of(name, "expected a whole number of at least 1");
    }

    /** An attribute that is a finite number of at least 0. */
    double amount(String name) {
        if (take(name, given) instanceof Number number && number.doubleValue() >= 0
                && Double.isFinite(number.doubleValue())) {
            return number.doubleValue();
        }
        throw Refusal.of(name, "expected a finite number of at least 0");
    }

    /** Refuses the call when it has an argument of dropout, which is not implemented here. */
    void withoutDropout() {
        for (String name : List.of("dropout_rate", "training", "seed")) {
            if (given.containsKey(name)) {
                throw new Refusal(Refusal.NOT_IMPLEMENTED, "dropout is not implemented");
            }
        }
    }

    /** Refuses the call when it has an argument that was not taken. */
    void done() {
        Set<String> left = new HashSet<>(given.keySet());
        left.addAll(params.keySet());
        if (!left.isEmpty()) {
            throw Refusal.of(left.iterator().next(), "there is no such argument");
        }
    }

    private static Object take(String name, Map<String, Object> from) {
        if (!from.containsKey(name)) {
            throw Refusal.of(name, "missing");
        }
        return from.remove(name);
    }

    private Tensor floats(String name, String axes, Map<String, Object> from) {
        if (!from.containsKey(name)) {
            throw Refusal.of(name, "missing; it is [" + axes + "]");
        }
        Tensor tensor = Tensor.read(name, from.remove(name));
        dtype = dtype == null ? tensor.dtype() : dtype;
        if (tensor.dtype().equals("bool") || !tensor.dtype().equals(dtype)) {
            throw Refusal.of(name, "dtype is " + tensor.dtype() + ", expected one of floats, the same for all");
        }
        fit(name, tensor, axes);
        return tensor;
    }

    /** Each axis has one size throughout a call, and no axis is empty. */
    private void fit(String name, Tensor tensor, String line) {
        String[] axes = line.split(" ");
        int[] shape = tensor.shape();
        String given = "shape " + Arrays.toString(shape);
        boolean anyLead = axes[0].equals("...");
        int lead = shape.length - axes.length + (anyLead ? 1 : 0);
        if (lead < 0 || !anyLead && lead > 0) {
            throw Refusal.of(name, given + " is not [" + line + "]");
        }
        for (int i = 0, at = 0; i < axes.length; i++) {
            int[] own = Arrays.copyOfRange(shape, at, at += anyLead && i == 0 ? lead : 1);
            if (Arrays.stream(own).anyMatch(size -> size == 0)) {
                throw Refusal.of(name, given + " is empty along " + axes[i]);
            }
            String size = Arrays.toString(own);
            String known = sizes.putIfAbsent(axes[i], size);
            seenIn.putIfAbsent(axes[i], name);
            if (known != null && !known.equals(size)) {
                String where = axes[i] + " is " + known + " in " + seenIn.get(axes[i]);
                throw Refusal.of(name, given + " is not [" + line + "]: " + where);
            }
        }
    }
}

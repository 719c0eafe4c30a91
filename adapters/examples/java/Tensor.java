import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;

/**
 * An array of the protocol: its elements flat and row-major, a boolean as 1 or 0.
 *
 * <p>A float32 is held and computed with as a double, and rounded once when it is written.
 */
record Tensor(String dtype, int[] shape, double[] data) {
    private static final int MAX_AXES = 8;
    private static final int MAX_ELEMENTS = 1 << 24;

    /** The array that an argument was given as; a Refusal when it is no array. */
    static Tensor read(String name, Object json) {
        if (!(json instanceof Map<?, ?> fields) || !fields.keySet().equals(Set.of("dtype", "shape", "data"))) {
            throw Refusal.of(name, "expected an array, an object of dtype, shape and data");
        }
        if (!(fields.get("dtype") instanceof String dtype) || !List.of("float64", "float32", "bool").contains(dtype)) {
            throw Refusal.of(name, "dtype is " + fields.get("dtype") + ", expected float64, float32 or bool");
        }
        int[] shape = readShape(name, fields.get("shape"));
        if (!(fields.get("data") instanceof List<?> elements)) {
            throw Refusal.of(name, "data is not a list of its elements");
        }
        if (elements.size() != size(shape)) {
            throw Refusal.of(name, "data has " + elements.size() + " elements, its shape has " + size(shape));
        }
        double[] data = new double[elements.size()];
        for (int i = 0; i < data.length; i++) {
            data[i] = readElement(name, dtype, elements.get(i));
        }
        return new Tensor(dtype, shape, data);
    }

    private static int[] readShape(String name, Object json) {
        if (!(json instanceof List<?> sizes) || sizes.size() > MAX_AXES) {
            throw Refusal.of(name, "shape is not a list of at most " + MAX_AXES + " sizes");
        }
        int[] shape = new int[sizes.size()];
        for (int i = 0; i < shape.length; i++) {
            if (!(sizes.get(i) instanceof Long size) || size < 0 || size > MAX_ELEMENTS) {
                throw Refusal.of(name, "shape has " + sizes.get(i) + ", expected sizes from 0 to " + MAX_ELEMENTS);
            }
            shape[i] = size.intValue();
        }
        return shape;
    }

    private static double readElement(String name, String dtype, Object element) {
        if (dtype.equals("bool") && element instanceof Boolean flag) {
            return flag ? 1 : 0;
        }
        if (!dtype.equals("bool") && element instanceof Number number) {
            double value = dtype.equals("float32") ? number.floatValue() : number.doubleValue();
            if (Double.isInfinite(value)) {
                throw Refusal.of(name, "data has " + element + ", which is beyond " + dtype);
            }
            return value;
        }
        boolean spelt = element instanceof String word && List.of("NaN", "Infinity", "-Infinity").contains(word);
        if (!dtype.equals("bool") && spelt) {
            return Double.parseDouble((String) element);
        }
        throw Refusal.of(name, "data has " + element + ", which is no " + dtype);
    }

    /** Exact up to the limit on elements, and beyond it still larger than any list. */
    private static long size(int[] shape) {
        boolean empty = IntStream.of(shape).anyMatch(size -> size == 0);
        return empty ? 0 : IntStream.of(shape).asLongStream().reduce(1, (a, b) -> Math.min(a * b, 1L << 32));
    }

    /** As the protocol writes it. */
    Map<String, Object> json() {
        List<Object> elements = new ArrayList<>(data.length);
        for (double element : data) {
            elements.add(dtype.equals("float32") ? (double) (float) element : element);
        }
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("dtype", dtype);
        fields.put("shape", IntStream.of(shape).boxed().toList());
        fields.put("data", elements);
        return fields;
    }

    /** The length of an axis, counted from the end: axis(1) is the last one. */
    int axis(int fromEnd) {
        return shape[shape.length - fromEnd];
    }

    /** All axes but the last `count`. */
    int[] lead(int count) {
        return Arrays.copyOf(shape, shape.length - count);
    }

    /** The rows of the last axis. */
    double[][] rows() {
        int width = axis(1);
        double[][] rows = new double[data.length / width][];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = Arrays.copyOfRange(data, i * width, (i + 1) * width);
        }
        return rows;
    }

    /** The matrices of the last two axes, in order. */
    List<double[][]> matrices() {
        double[][] rows = rows();
        int height = axis(2);
        List<double[][]> matrices = new ArrayList<>();
        for (int i = 0; i < rows.length; i += height) {
            matrices.add(Arrays.copyOfRange(rows, i, i + height));
        }
        return matrices;
    }

    /** The matrices of the last two axes, as masks. */
    List<boolean[][]> masks() {
        List<boolean[][]> masks = new ArrayList<>();
        for (double[][] matrix : matrices()) {
            boolean[][] mask = new boolean[matrix.length][matrix[0].length];
            for (int i = 0; i < matrix.length; i++) {
                for (int j = 0; j < matrix[i].length; j++) {
                    mask[i][j] = matrix[i][j] != 0;
                }
            }
            masks.add(mask);
        }
        return masks;
    }

    /** The array of these leading axes whose last two are the matrices, one after the other. */
    static Tensor of(String dtype, int[] lead, List<double[][]> matrices) {
        int height = matrices.get(0).length;
        int width = matrices.get(0)[0].length;
        double[] data = new double[matrices.size() * height * width];
        int at = 0;
        for (double[][] matrix : matrices) {
            for (double[] row : matrix) {
                System.arraycopy(row, 0, data, at, width);
                at += width;
            }
        }
        int[] shape = Arrays.copyOf(lead, lead.length + 2);
        shape[lead.length] = height;
        shape[lead.length + 1] = width;
        return new Tensor(dtype, shape, data);
    }
}

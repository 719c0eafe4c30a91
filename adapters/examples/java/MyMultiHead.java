import java.util.ArrayList;
import java.util.List;

/** Multi-head attention of one sample: head j owns the j-th block of columns of the projections. */
record MyMultiHead(int heads, Linear q, Linear k, Linear v, Linear o) {

    /** x·W + b; the bias may be null. */
    record Linear(double[][] weight, double[] bias) {
        double[][] of(double[][] x) {
            return Matrices.affine(x, weight, bias);
        }
    }

    /** Queries, keys and values of one head, and what it gives. */
    record Head(double[][] q, double[][] k, double[][] v, MyAttention.Attended attended) {}

    /** Every head, in order; masks holds one mask for each, or is null. */
    List<Head> heads(double[][] query, double[][] key, double[][] value, List<boolean[][]> masks) {
        double[][] queries = q.of(query);
        double[][] keys = k.of(key);
        double[][] values = v.of(value);
        List<Head> result = new ArrayList<>();
        for (int j = 0; j < heads; j++) {
            double[][] ownQueries = block(queries, j);
            double[][] ownKeys = block(keys, j);
            double[][] ownValues = block(values, j);
            boolean[][] mask = masks == null ? null : masks.get(j);
            MyAttention.Attended attended = MyAttention.attend(ownQueries, ownKeys, ownValues, mask);
            result.add(new Head(ownQueries, ownKeys, ownValues, attended));
        }
        return result;
    }

    /** The outputs of the heads side by side, projected by o. */
    double[][] joined(List<Head> heads) {
        int rows = heads.get(0).attended().output().length;
        int width = heads.get(0).attended().output()[0].length;
        double[][] concatenated = new double[rows][heads.size() * width];
        for (int j = 0; j < heads.size(); j++) {
            for (int i = 0; i < rows; i++) {
                System.arraycopy(heads.get(j).attended().output()[i], 0, concatenated[i], j * width, width);
            }
        }
        return o.of(concatenated);
    }

    private double[][] block(double[][] projected, int head) {
        int width = projected[0].length / heads;
        return Matrices.columns(projected, head * width, width);
    }
}

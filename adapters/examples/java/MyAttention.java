/** Scaled dot-product attention and its backward pass, on matrices whose rows are tokens. */
final class MyAttention {
    private MyAttention() {}

    /** What attention gives: output (q_seq, d_v); scores, scaledScores and weights, each (q_seq, kv_seq). */
    record Attended(double[][] output, double[][] weights, double[][] scores, double[][] scaledScores) {}

    /** The gradients of the three arguments of attention, each of its argument's shape. */
    record Gradients(double[][] query, double[][] key, double[][] value) {}

    /** exp(s − max) / Σ exp(s − max): without the maximum a large score would overflow. */
    static double[] softmax(double[] scores) {
        double largest = Double.NEGATIVE_INFINITY;
        for (double score : scores) {
            largest = Math.max(largest, score);
        }
        double[] result = new double[scores.length];
        double total = 0;
        for (int j = 0; j < scores.length; j++) {
            result[j] = Math.exp(scores[j] - largest);
            total += result[j];
        }
        for (int j = 0; j < scores.length; j++) {
            result[j] /= total;
        }
        return result;
    }

    /** softmax(QKᵀ/√d_k)·V; the mask is true where a query may attend to a key, or null. */
    static Attended attend(double[][] query, double[][] key, double[][] value, boolean[][] mask) {
        double[][] scores = Matrices.product(query, Matrices.transposed(key));
        double[][] scaled = Matrices.scaled(1 / Math.sqrt(query[0].length), scores);
        double[][] weights = new double[scores.length][];
        for (int i = 0; i < scores.length; i++) {
            weights[i] = softmax(mask == null ? scaled[i] : masked(scaled[i], mask[i]));
        }
        return new Attended(Matrices.product(weights, value), weights, scores, scaled);
    }

    /** The scores with the lowest double where the mask is false: a row of only this number becomes uniform. */
    private static double[] masked(double[] scores, boolean[] mask) {
        double[] result = scores.clone();
        for (int j = 0; j < scores.length; j++) {
            if (!mask[j]) {
                result[j] = -Double.MAX_VALUE;
            }
        }
        return result;
    }

    /** The gradients by query, key and value, given that of the output, dO, and the weights P of the forward pass. */
    static Gradients backward(
            double[][] query, double[][] key, double[][] value, boolean[][] mask,
            double[][] weights, double[][] outputGradient) {
        double[][] valueGradient = Matrices.product(Matrices.transposed(weights), outputGradient); // Pᵀ·dO
        double[][] weightGradient = Matrices.product(outputGradient, Matrices.transposed(value)); // dO·Vᵀ
        double[][] scaledGradient = new double[weights.length][];
        for (int i = 0; i < weights.length; i++) {
            scaledGradient[i] = softmaxBackward(weights[i], weightGradient[i], mask == null ? null : mask[i]);
        }
        double[][] scoreGradient = Matrices.scaled(1 / Math.sqrt(query[0].length), scaledGradient);
        return new Gradients(
                Matrices.product(scoreGradient, key), // dS·K
                Matrices.product(Matrices.transposed(scoreGradient), query), // dSᵀ·Q
                valueGradient);
    }

    /** The gradient of a row of scores, P·(dP − Σ dP·P); a masked score has no gradient. */
    private static double[] softmaxBackward(double[] weights, double[] gradient, boolean[] mask) {
        double mean = 0;
        for (int j = 0; j < weights.length; j++) {
            mean += gradient[j] * weights[j];
        }
        double[] result = new double[weights.length];
        for (int j = 0; j < weights.length; j++) {
            result[j] = mask == null || mask[j] ? weights[j] * (gradient[j] - mean) : 0;
        }
        return result;
    }
}
